/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of size as koala has processors: the first process speaks for all, by koala's application library. */
#include "orders.h"

#include <koala_app.h>

#include <stdio.h>
#include <stdlib.h>

static koala_app *app;
static int changing;

/* koala's runner knows the placeholder of each process to come by this name. */
static void name_hosts(struct order *order, const koala_app_member *members, int count)
{
    order->joining = count;
    order->host = calloc((size_t)count + 1, sizeof *order->host);
    if (order->host == NULL)
        resize_fail("no memory for %d hosts", count);
    for (int each = 0; each < count; each++)
        snprintf(order->host[each], HOST_LENGTH, "koala%d", members[each].rank);
}

static int koala_start(struct order *order)
{
    name_hosts(order, koala_app_members(app) + 1, koala_app_size(app) - 1);
    return order->joining > 0;
}

static void name_leavers(struct order *order, const koala_app_change *change)
{
    order->leaver = calloc((size_t)change->leaving_size + 1, sizeof *order->leaver);
    if (order->leaver == NULL)
        resize_fail("no memory for %d processes", change->leaving_size);
    for (int each = 0; each < change->old_size; each++)
        for (int leaver = 0; leaver < change->leaving_size; leaver++)
            if (change->old[each].rank == change->leaving[leaver].rank)
                order->leaver[order->leaving++] = each;
}

/* koala's numbers of all that compute after a change. */
static void list_members(struct order *order, const koala_app_change *change)
{
    size_t room = 12 * (size_t)change->size + 1;
    int length = 0;

    order->members = calloc(room, 1);
    if (order->members == NULL)
        resize_fail("no memory for %d members", change->size);
    for (int each = 0; each < change->size; each++)
        length += snprintf(order->members + length, room - (size_t)length, " %d", change->members[each].rank);
}

static int koala_point(struct order *order, long point, int size)
{
    const koala_app_change *change;
    int asked = koala_app_point(app, &change);

    (void)point;
    if (asked < 0)
        resize_fail("%s", koala_app_error());
    if (asked == 0)
        return 0;
    if (change->old_size != size)
        resize_fail("koala knows of %d processes, there are %d", change->old_size, size);
    order->number = change->number;
    order->point = change->at;
    name_leavers(order, change);
    name_hosts(order, change->joining, change->joining_size);
    list_members(order, change);
    changing = 1;
    return 1;
}

static int koala_ending(void)
{
    return koala_app_ending(app);
}

static void koala_done(void)
{
    if (changing && koala_app_done(app) < 0)
        resize_fail("%s", koala_app_error());
    changing = 0;
}

static void koala_unable(void)
{
    resize_fail("the change that koala waits for cannot be made");
}

static void koala_leave(void)
{
    koala_app_close(app);
}

static const struct orders orders_by_koala = {koala_start,  koala_point,  koala_ending,
                                              koala_done,   koala_unable, koala_leave};

const struct orders *orders_from_koala(const char *sizes, enum resize_method method)
{
    app = koala_app_join_mpi(method == RESIZE_SPAWN ? "spawn" : "restart", sizes, NULL, NULL, "");
    if (app == NULL)
        resize_fail("%s", koala_app_error());
    return &orders_by_koala;
}
