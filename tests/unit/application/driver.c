/* SPDX-License-Identifier: Apache-2.0 */
/* As driver.py: makes the calls it is told on standard input, one on a line, and says what came of each. */
#include "koala_app.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void ranks(const char *name, const koala_app_member *members, int size) {
    printf(" %s ", name);
    for (int i = 0; i < size; i++) printf("%s%d", i ? "," : "", members[i].rank);
    if (!size) printf("-");
}

static void show(const koala_app_change *change) {
    if (!change) {
        printf("nothing\n");
        return;
    }
    printf("change %d at %ld", change->number, change->at);
    ranks("old", change->old, change->old_size);
    ranks("members", change->members, change->size);
    ranks("leaving", change->leaving, change->leaving_size);
    ranks("joining", change->joining, change->joining_size);
    printf(" rank %d old_rank %d size %d reason %s\n", change->rank, change->old_rank, change->size, change->reason);
}

static int sized(int size, int offered, void *context) {
    (void)context;
    if (offered == 3 || offered == -3) return size + 99;
    return offered > 0 ? size + offered / 2 : size + offered;
}

static void failed(void) { printf("error %s\n", koala_app_error()); }

static koala_app *call(koala_app *app, char *line) {
    const koala_app_change *change = NULL;
    char verb[32] = "", reason[2001] = "";
    int number = 0, got = 0;
    sscanf(line, "%31s %d", verb, &number);
    if (!strcmp(verb, "join")) {
        char *sizes = strtok(line + 5, " ");
        char *contact = strtok(NULL, "");
        app = koala_app_join(sizes, strcmp(sizes, "function") ? NULL : sized, NULL, contact ? contact : "");
        if (app)
            printf("joined\n");
        else
            failed();
    } else if (!strcmp(verb, "point")) {
        if (koala_app_point(app, &change) < 0)
            failed();
        else
            show(change);
    } else if (!strcmp(verb, "points")) {
        while (number--) koala_app_point(app, &change);
        printf("reached %ld\n", koala_app_reached(app));
    } else if (!strcmp(verb, "until")) {
        while (!(got = koala_app_point(app, &change))) poll(NULL, 0, 1); /* a step */
        if (got < 0)
            failed();
        else
            show(change);
    } else if (!strcmp(verb, "done")) {
        if (koala_app_done(app))
            failed();
        else
            printf("done rank %d size %d\n", koala_app_rank(app), koala_app_size(app));
    } else if (!strcmp(verb, "leave")) {
        if (koala_app_leave(app))
            failed();
        else {
            app = NULL;
            printf("left\n");
        }
    } else if (!strcmp(verb, "ending")) { /* now, or in a while */
        while (line[6] && !koala_app_ending(app)) poll(NULL, 0, 1);
        double left = koala_app_time_left(app);
        printf("ending %d left %ld\n", koala_app_ending(app), left < 0 ? -1 : (long)left + (left > (double)(long)left));
    } else if (!strcmp(verb, "state")) {
        printf("rank %d size %d reached %ld contacts", koala_app_rank(app), koala_app_size(app), koala_app_reached(app));
        for (int i = 0; i < koala_app_size(app); i++) printf(" %s", koala_app_members(app)[i].contact);
        printf(" ");
        show(koala_app_present_change(app));
    } else {
        const char *memory = strstr(line, "memory ");
        int mandatory = !!strstr(line, "mandatory");
        if (strcmp(verb, "request"))
            got = koala_app_give_back(app, number, reason, sizeof reason);
        else if (memory)
            got = koala_app_request_memory(app, number, atoi(memory + 7), mandatory, reason, sizeof reason);
        else
            got = koala_app_request(app, number, mandatory, reason, sizeof reason);
        if (got < 0)
            failed();
        else
            printf("granted %d%s%s\n", got, *reason ? " " : "", reason);
    }
    return app;
}

int main(void) {
    static char line[4096];
    koala_app *app = NULL;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        app = call(app, line);
        fflush(stdout);
    }
    koala_app_close(app);
    return 0;
}
