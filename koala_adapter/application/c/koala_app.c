/* SPDX-License-Identifier: Apache-2.0 */
/* The parts, in this order: texts; notes; members; which sizes; the state of the process (what koala says, what the
 * program does); negotiations; the thread; the calls. The states and texts are those of koala_app.py.
 *
 * The program counts its points in `reached`, without the lock, and then looks at `attention`. Whoever arms a process sets
 * `attention` first and looks at `reached` afterwards. So of a point that is passed at that very moment, at least one of
 * the two sees the other, and what is done under the lock finds what holds. */
#define _GNU_SOURCE /* struct ucred */
#include "koala_app.h"
#include "koala_nt.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define HEADER 9
#define LARGEST_FRAME 65536
#define LARGEST_NUMBER 2147483647L
#define LARGEST_CONTACT 200
#define MOST_WORDS 32
#define MOST_WAITING (1 << 20) /* bytes; while more wait, nobody is told of errors */
#define FIRST_PAUSE 50 /* milliseconds between two tries to connect */
#define LONGEST_PAUSE 5000
#define JOIN_PATIENCE 30000 /* within which the first connection must be made */
#define LONGEST_SEPARATION 300000 /* without a connection, after which a call that waits gives up */
#define FAREWELL_PATIENCE 5000 /* in which the last words must be on their way */
#define MANDATORY_PATIENCE 600000 /* in which a mandatory wish is answered: others must shrink first */
#define VOLUNTARY_PATIENCE 60000
#define MOST_WISHES 4

enum State { NEW, RUNNING, ARMED, WAITING, CHANGING, DONE, LEFT };
static const char *const STATE[] = {"new", "running", "armed", "waiting", "changing", "done", "left"};
enum Rule { ANY, POWER_OF_TWO, MULTIPLE, FUNCTION };

typedef struct {
    int size;
    koala_app_member *member;
} Members;

typedef struct {
    char id[65]; /* "": free */
    int settled;
    long granted;
    char reason[2001];
} Wish;

struct koala_app {
    /* Looked at without the lock. */
    long reached;
    int attention;
    int ending; /* koala has said that the end of the walltime is near */
    long long ends_at; /* when the processes are ended as their time is over, in milliseconds(); 0: nobody has told */
    long long near_at; /* when that is near, also for one that is out of contact then; 0: never, or nobody has told */

    /* The state of the process. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum State state;
    int own_number; /* koala's */
    long number, at; /* of the change under way; while new or running, number is that of the last one that ended here */
    long ended, agreement;
    const char *said; /* the last note of an agreement that has not ended, which hello does not tell of */
    const char *mpi; /* what hello says of it */
    int leaving;
    Members members, old, leavers, joiners;
    koala_app_change change;
    char *reason;
    long minimum, maximum;
    char head[256], host[256], contact[LARGEST_CONTACT + 1];
    char failure[512]; /* what koala refuses to a call that waits */

    /* Negotiations. */
    enum Rule rule;
    char sizes[40];
    long step;
    koala_app_sizing function;
    void *context;
    NT_Endpoint endpoint;
    long coming[NT_MOST_KEPT]; /* of each negotiation: processors that no change has brought yet, below 0: taken away */
    NT offer, answer; /* in work */
    Wish wish[MOST_WISHES];
    long asked;

    /* The connection. */
    int threaded, closing, finished;
    pthread_t thread;
    char *path;
    int wake[2];
    char broken[512], shown[512];
    char *output, *received;
    size_t waiting, room, got;
};

static __thread char error_text[512];

const char *koala_app_error(void) { return error_text; }

static int failed(const char *format, ...) {
    va_list words;
    va_start(words, format);
    vsnprintf(error_text, sizeof error_text, format, words);
    va_end(words);
    return -1;
}

static long long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000 + 1; /* never 0 */
}

static void *allocated(size_t count, size_t size) {
    void *found = calloc(count ? count : 1, size);
    if (!found) {
        fprintf(stderr, "koala_app: there is no memory\n");
        abort();
    }
    return found;
}

/* Texts. */

/* Makes a text one line without control characters. */
static void make_one_line(char *text) {
    char *to = text;
    for (char *at = text; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (isspace(c)) {
            if (to > text && to[-1] != ' ') *to++ = ' ';
        } else
            *to++ = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    while (to > text && to[-1] == ' ') to--;
    *to = 0;
}

/* Writes to standard error, but not the same twice in a row. */
static void show(koala_app *app, const char *text) {
    char line[512];
    snprintf(line, sizeof line, "%s", text);
    make_one_line(line);
    if (!strcmp(line, app->shown)) return;
    memcpy(app->shown, line, sizeof line);
    fprintf(stderr, "koala_app: process %d: %s\n", app->own_number, line);
}

static size_t encode(char *to, size_t room, const char *text) {
    size_t size = 0;
    for (; *text && size + 4 < room; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x80 && (isalnum(c) || strchr("._~:,/@[]-", c)))
            to[size++] = (char)c;
        else
            size += (size_t)snprintf(to + size, 4, "%%%02X", (unsigned)c);
    }
    to[size] = 0;
    return size;
}

static int hexadecimal(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int is_utf8(const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        int more = *at < 0x80 ? 0 : *at >= 0xc2 && *at < 0xe0 ? 1 : (*at & 0xf0) == 0xe0 ? 2 : *at >= 0xf0 && *at < 0xf5 ? 3 : -1;
        unsigned first = *at++, second = *at;
        if (more < 0 || (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
            (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f))
            return 0;
        for (; more; more--)
            if ((*at++ & 0xc0) != 0x80) return 0;
    }
    return 1;
}

/* Decodes what is percent-encoded, in its place. */
static int decode(char *text) {
    char *to = text;
    for (const char *at = text; *at; at++) {
        if (*at == '%') {
            int high = hexadecimal(at[1]), low = high < 0 ? -1 : hexadecimal(at[2]);
            if (low < 0 || !(high * 16 + low)) return failed("a word is encoded wrongly");
            *to++ = (char)(high * 16 + low);
            at += 2;
        } else if (isalnum((unsigned char)*at) || strchr("._~:,/@[]-", *at))
            *to++ = *at;
        else
            return failed("a word has a character that must be encoded");
    }
    *to = 0;
    return is_utf8(text) ? 0 : failed("a note is in UTF-8");
}

/* Returns a number of digits alone; -1: it is none. */
static long whole(const char *text) {
    size_t size = strlen(text);
    if (size < 1 || size > 10 || strspn(text, "0123456789") != size) return -1;
    long long value = atoll(text);
    return value <= LARGEST_NUMBER ? (long)value : -1;
}

/* Notes. */

typedef struct {
    char verb[33];
    int words;
    char *key[MOST_WORDS], *value[MOST_WORDS];
} Note;

/* Takes a note apart, in its place. */
static int read_note(char *line, size_t size, Note *note) {
    char *rest = line, *one = NULL;
    memset(note, 0, sizeof *note);
    if (strlen(line) != size || line[strspn(line, "abcdefghijklmnopqrstuvwxyz-")] > ' ' || !islower((unsigned char)*line) ||
        strcspn(line, " ") > 32)
        return failed("this is no note");
    for (char *end; rest; rest = end) {
        end = strchr(rest, ' ');
        if (end) *end++ = 0;
        one = rest;
        if (!note->verb[0]) {
            snprintf(note->verb, sizeof note->verb, "%.32s", one);
            if (one[strspn(one, "abcdefghijklmnopqrstuvwxyz-")]) return failed("this is no note");
            continue;
        }
        char *value = strchr(one, '=');
        if (!value || value == one || note->words == MOST_WORDS) return failed("%s has a word that cannot be: %.60s", note->verb, one);
        *value++ = 0;
        if (one[strspn(one, "abcdefghijklmnopqrstuvwxyz_-")]) return failed("%s has a word that cannot be: %.60s", note->verb, one);
        for (int i = 0; i < note->words; i++)
            if (!strcmp(note->key[i], one)) return failed("%s has a word that cannot be: %.60s", note->verb, one);
        if (decode(value)) return -1;
        note->key[note->words] = one;
        note->value[note->words++] = value;
    }
    return 0;
}

static char *word(const Note *note, const char *key) {
    for (int i = 0; i < note->words; i++)
        if (!strcmp(note->key[i], key)) return note->value[i];
    return NULL;
}

static int take_number(const Note *note, const char *key, long *number) {
    const char *text = word(note, key);
    if (!text) return failed("%s lacks %s=", note->verb, key);
    *number = whole(text);
    return *number < 0 ? failed("%s has %s=%.40s, which is no number", note->verb, key, text) : 0;
}

static void put_frame(koala_app *app, const char *payload, size_t size) {
    char header[HEADER + 1];
    if (app->waiting + HEADER + size > app->room) {
        app->room = 2 * (app->waiting + HEADER + size);
        app->output = realloc(app->output, app->room);
        if (!app->output) abort();
    }
    snprintf(header, sizeof header, "%08u\n", (unsigned)size % 100000000U);
    memcpy(app->output + app->waiting, header, HEADER);
    memcpy(app->output + app->waiting + HEADER, payload, size);
    app->waiting += HEADER + size;
    if (app->threaded && write(app->wake[1], "x", 1) < 0) return; /* there are enough in it */
}

/* Says a note of numbers and words that need no encoding. */
static void say(koala_app *app, const char *format, ...) {
    char line[1024];
    va_list words;
    va_start(words, format);
    int size = vsnprintf(line, sizeof line, format, words);
    va_end(words);
    put_frame(app, line, (size_t)size);
}

/* Tells people, here and at koala, of what is wrong; error_text says it. */
static int refuse(koala_app *app) {
    char text[512], encoded[3 * 512 + 16] = "error text=";
    snprintf(text, sizeof text, "%s", error_text);
    show(app, text);
    make_one_line(text);
    size_t size = strlen(encoded);
    size += encode(encoded + size, sizeof encoded - size, text);
    if (app->waiting < MOST_WAITING) put_frame(app, encoded, size);
    return -1;
}

/* Members. */

static int copied(char *to, size_t room, const char *text) {
    if (strlen(text) >= room) return failed("a member has a field that is too long: %.60s", text);
    strcpy(to, text);
    return 0;
}

static int read_member(char *text, koala_app_member *member) {
    char *field[4];
    for (int i = 0; i < 4; i++) {
        field[i] = text;
        text = text ? strchr(text, '@') : NULL;
        if ((i < 3) == !text) return failed("a member is RANK@CLUSTER@ADDRESS@CONTACT");
        if (text) *text++ = 0;
    }
    for (int i = 0; i < 4; i++)
        if (decode(field[i])) return -1;
    long rank = whole(field[0]);
    if (rank < 0) return failed("member has rank=%.40s, which is no number", field[0]);
    member->rank = (int)rank;
    return copied(member->cluster, sizeof member->cluster, field[1]) ||
                   copied(member->address, sizeof member->address, field[2]) ||
                   copied(member->contact, sizeof member->contact, field[3])
               ? -1
               : 0;
}

static int position(const Members *members, int rank) {
    for (int i = 0; i < members->size; i++)
        if (members->member[i].rank == rank) return i;
    return -1;
}

/* Reads a list; what it holds is to be freed in any case. */
static int read_members(const Note *note, const char *key, Members *members) {
    char *text = word(note, key);
    memset(members, 0, sizeof *members);
    if (!text) return failed("%s lacks %s=", note->verb, key);
    int most = 1;
    for (const char *at = text; *at; at++) most += *at == ',';
    members->member = allocated((size_t)most, sizeof *members->member);
    for (char *end; text && *text; text = end) {
        koala_app_member one;
        memset(&one, 0, sizeof one);
        end = strchr(text, ',');
        if (end) *end++ = 0;
        if (read_member(text, &one)) return -1;
        if (position(members, one.rank) >= 0) return failed("a member is listed twice");
        members->member[members->size++] = one;
    }
    return 0;
}

static void take_members(Members *to, Members *from) {
    free(to->member);
    *to = *from;
    memset(from, 0, sizeof *from);
}

static Members copy_members(const Members *of) {
    Members copy = {of->size, allocated((size_t)of->size, sizeof *of->member)};
    if (of->size) memcpy(copy.member, of->member, (size_t)of->size * sizeof *of->member);
    return copy;
}

static int read_bounds(const Note *note, koala_app *app) {
    const char *head = word(note, "head");
    app->minimum = 1;
    app->maximum = LARGEST_NUMBER;
    if (word(note, "minimum") && take_number(note, "minimum", &app->minimum)) return -1;
    if (word(note, "maximum") && take_number(note, "maximum", &app->maximum)) return -1;
    snprintf(app->head, sizeof app->head, "%.255s", head ? head : "");
    return 0;
}

/* Which sizes. */

static long largest(const koala_app *app, long size) {
    long power = 1;
    if (app->rule == MULTIPLE) return size / app->step * app->step;
    if (app->rule != POWER_OF_TWO) return size;
    while (power * 2 <= size) power *= 2;
    return size > 0 ? power : 0;
}

static long smallest(const koala_app *app, long size) {
    long power = 1;
    if (app->rule == MULTIPLE) return (size + app->step - 1) / app->step * app->step;
    if (app->rule != POWER_OF_TWO) return size;
    while (power < size) power *= 2;
    return power;
}

/* Returns the size that the program's function wants; -1: that cannot be. */
static long wanted(koala_app *app, long size, long offered, long least, long most) {
    int found = app->function((int)size, (int)offered, app->context);
    if (found >= least && found <= most) return found;
    return failed("sizes(%ld, %ld) returned %d, which is no size from %ld to %ld", size, offered, found, least, most);
}

static long smaller(long one, long other) { return one < other ? one : other; }
static long greater(long one, long other) { return one > other ? one : other; }

/* Returns how many processors of an offer are taken; -1: the program's function has failed. */
static long accept_growth(koala_app *app, long size, long offered) {
    long possible = smaller(size + offered, app->maximum), found;
    if (app->rule == FUNCTION) {
        if (possible <= size || possible < app->minimum) return 0;
        found = wanted(app, size, possible - size, size, possible);
        return found < 0 ? -1 : found - size;
    }
    found = largest(app, possible);
    return found >= app->minimum ? greater(0, found - size) : 0;
}

/* Returns how many processors are given up; -1: the program's function has failed. */
static long accept_shrink(koala_app *app, long size, long requested) {
    long possible = greater(size - requested, app->minimum), found;
    if (app->rule == FUNCTION) {
        found = possible < size ? wanted(app, size, possible - size, app->minimum, size) : size;
        return found < 0 ? -1 : size - found;
    }
    found = largest(app, possible);
    if (found < app->minimum) found = smallest(app, app->minimum);
    return greater(0, size - found);
}

static int take_rule(koala_app *app, const char *sizes) {
    if (app->function) {
        app->rule = FUNCTION;
        snprintf(app->sizes, sizeof app->sizes, "function");
        return 0;
    }
    if (!sizes) sizes = "any";
    app->step = strncmp(sizes, "multiple-of-", 12) ? 0 : whole(sizes + 12);
    app->rule = !strcmp(sizes, "any") ? ANY : !strcmp(sizes, "power-of-two") ? POWER_OF_TWO : MULTIPLE;
    if (app->rule == MULTIPLE && app->step < 1)
        return failed("sizes is any, power-of-two, multiple-of-N or a function, not '%.60s'", sizes);
    if (app->rule == MULTIPLE)
        snprintf(app->sizes, sizeof app->sizes, "multiple-of-%ld", app->step);
    else
        snprintf(app->sizes, sizeof app->sizes, "%s", app->rule == ANY ? "any" : "power-of-two");
    return 0;
}

/* The state of the process: what koala says. Each returns -1 when it cannot be followed. */

static long count_of(const koala_app *app) { return __atomic_load_n(&app->reached, __ATOMIC_SEQ_CST); }

static void attend(koala_app *app, int attention) { __atomic_store_n(&app->attention, attention, __ATOMIC_SEQ_CST); }

static int own_position(const koala_app *app) { return position(&app->members, app->own_number); }

static const char *standing(const koala_app *app) {
    static __thread char text[64];
    if (app->state <= RUNNING) return STATE[app->state];
    snprintf(text, sizeof text, "%s (change %ld)", STATE[app->state], app->number);
    return text;
}

static void run(koala_app *app) {
    app->state = RUNNING;
    app->number = app->ended;
    app->at = 0;
    attend(app, 0);
}

static void say_count(koala_app *app) {
    say(app, "%s change=%ld %s=%ld", app->said, app->agreement, strcmp(app->said, "reached") ? "reached" : "point", count_of(app));
}

/* What is said first on a connection, and to "who". */
static void say_hello(koala_app *app) {
    char contact[3 * LARGEST_CONTACT + 8];
    encode(contact, sizeof contact, app->contact);
    say(app, "hello version=1 state=%s change=%ld at=%ld reached=%ld contact=%s sizes=%s pid=%ld ends=1 away=1%s", STATE[app->state],
        app->number, app->at, count_of(app), contact, app->sizes, (long)getpid(), app->mpi);
    if (app->state == RUNNING && app->said) say_count(app);
    if (app->leaving) say(app, "leaving");
}

/* What is said of a change is to be passed over: it has come late, or again, or too early. */
static int is_no_matter(const koala_app *app, long number) {
    return app->state == NEW || app->state == DONE || number <= app->ended ||
           (number == app->number && app->state == CHANGING);
}

static int does_not_follow(const koala_app *app, const Note *note) {
    return failed("%s does not follow: this process is %s", note->verb, standing(app));
}

static int heard_welcome(koala_app *app, const Note *note) {
    Members members = {0, NULL};
    long rank, size;
    int wrong;
    if (app->state != NEW) return 0;
    wrong = take_number(note, "rank", &rank) || take_number(note, "size", &size) || read_members(note, "members", &members);
    if (!wrong && (members.size != size || position(&members, (int)rank) < 0))
        wrong = failed("welcome rank=%ld does not fit to its members", rank);
    if (!wrong) wrong = read_bounds(note, app);
    if (!wrong) {
        app->own_number = (int)rank;
        take_members(&app->members, &members);
        run(app);
    }
    free(members.member);
    return wrong ? -1 : 0;
}

static int heard_when(koala_app *app, const Note *note) {
    long number;
    if (take_number(note, "change", &number)) return -1;
    if (is_no_matter(app, number)) return 0;
    if (app->state > WAITING) return does_not_follow(app, note);
    app->agreement = number;
    app->said = "reached";
    say_count(app);
    return 0;
}

static int heard_stop(koala_app *app, const Note *note) {
    long number, at;
    if (take_number(note, "change", &number) || take_number(note, "at", &at)) return -1;
    if (is_no_matter(app, number)) return 0;
    if (app->state > WAITING) return does_not_follow(app, note);
    if (app->state == WAITING && at == app->at) {
        app->number = number;
        say(app, "waiting change=%ld at=%ld", number, at);
        return 0;
    }
    attend(app, 1); /* before `reached` is looked at */
    app->agreement = number;
    app->said = NULL;
    if (at > count_of(app)) {
        app->state = ARMED;
        app->number = number;
        app->at = at;
        say(app, "armed change=%ld at=%ld", number, at);
        return 0;
    }
    if (app->state != WAITING) {
        run(app);
        app->said = "passed";
    }
    say(app, "passed change=%ld reached=%ld", number, count_of(app));
    return 0;
}

static int heard_abandon(koala_app *app, const Note *note) {
    long number;
    if (take_number(note, "change", &number)) return -1;
    if (number == app->agreement) app->said = NULL;
    if ((app->state == ARMED || app->state == WAITING) && number == app->number) run(app);
    return 0;
}

/* Koala is out of contact: a change for which not all stand cannot be made for now. A process that has said that it
 * stands at the point stays, because all may have said so; another one is agreed upon with the others. */
static void out_of_contact(koala_app *app) {
    app->said = NULL;
    if (app->state == ARMED) run(app);
}

/* The parts of a change while it is read. */
typedef struct {
    Members members, leavers, old, joiners;
} Parts;

/* Finds the old members: as the note lists them, as they were known, or those that stay and those that leave. */
static int read_old(const koala_app *app, const Note *note, Parts *parts) {
    char *text = word(note, "old");
    if (!text && app->members.size) {
        parts->old = copy_members(&app->members);
        return 0;
    }
    parts->old.member = allocated((size_t)(parts->members.size + parts->leavers.size), sizeof *parts->old.member);
    if (!text) {
        for (int i = 0; i < parts->members.size; i++) parts->old.member[parts->old.size++] = parts->members.member[i];
        for (int i = 0; i < parts->leavers.size; i++) parts->old.member[parts->old.size++] = parts->leavers.member[i];
        return 0;
    }
    for (char *end; text && *text; text = end) {
        end = strchr(text, ',');
        if (end) *end++ = 0;
        int rank = (int)whole(text), stays = position(&parts->members, rank), leaves = position(&parts->leavers, rank);
        if (rank < 0 || (stays < 0 && leaves < 0))
            return failed("change names an old member %.20s that neither stays nor leaves", text);
        if (position(&parts->old, rank) >= 0) return failed("a member is listed twice");
        parts->old.member[parts->old.size++] = stays >= 0 ? parts->members.member[stays] : parts->leavers.member[leaves];
    }
    int same = !app->members.size || app->members.size == parts->old.size; /* else it would be sought where it is not */
    for (int i = 0; same && i < app->members.size; i++) same = app->members.member[i].rank == parts->old.member[i].rank;
    return same ? 0 : failed("change names other old members, or in another order, than this process knows");
}

static int read_parts(const koala_app *app, const Note *note, long own, long number, Parts *parts) {
    long size;
    if (read_members(note, "members", &parts->members) || read_members(note, "leaving", &parts->leavers) ||
        take_number(note, "size", &size))
        return -1;
    if (parts->members.size != size) return failed("change has size=%ld and %d members", size, parts->members.size);
    for (int i = 0; i < parts->leavers.size; i++)
        if (position(&parts->members, parts->leavers.member[i].rank) >= 0)
            return failed("change has a member that both stays and leaves");
    if (position(&parts->members, (int)own) < 0) {
        if (position(&parts->leavers, (int)own) < 0) return failed("change %ld does not name this process, %ld", number, own);
        if (app->state == NEW) return failed("change %ld takes out this process, which is not a member yet", number);
    }
    if (read_old(app, note, parts)) return -1;
    parts->joiners.member = allocated((size_t)parts->members.size, sizeof *parts->joiners.member);
    for (int i = 0; i < parts->members.size; i++)
        if (position(&parts->old, parts->members.member[i].rank) < 0)
            parts->joiners.member[parts->joiners.size++] = parts->members.member[i];
    return 0;
}

/* Those that join or leave are counted in the members from now on: they are no longer to come. */
static void discharge(koala_app *app) {
    for (int sign = 1; sign >= -1; sign -= 2) {
        long left = sign > 0 ? app->change.joining_size : app->change.leaving_size;
        for (int i = 0; i < NT_MOST_KEPT; i++) {
            long part = smaller(left, greater(0, app->coming[i] * sign));
            left -= part;
            app->coming[i] -= sign * part;
        }
    }
}

static void take_change(koala_app *app, const Note *note, long number, long at, Parts *parts) {
    const char *reason = word(note, "reason");
    take_members(&app->members, &parts->members);
    take_members(&app->leavers, &parts->leavers);
    take_members(&app->old, &parts->old);
    take_members(&app->joiners, &parts->joiners);
    free(app->reason);
    app->reason = allocated(strlen(reason ? reason : "") + 1, 1);
    strcpy(app->reason, reason ? reason : "");
    app->state = CHANGING;
    app->number = number;
    app->at = at;
    app->said = NULL;
    __atomic_store_n(&app->reached, at, __ATOMIC_SEQ_CST);
    app->change.number = (int)number;
    app->change.at = at;
    app->change.rank = own_position(app);
    app->change.old_rank = position(&app->old, app->own_number);
    app->change.size = app->members.size;
    app->change.members = app->members.member;
    app->change.old_size = app->old.size;
    app->change.old = app->old.member;
    app->change.leaving_size = app->leavers.size;
    app->change.leaving = app->leavers.member;
    app->change.joining_size = app->joiners.size;
    app->change.joining = app->joiners.member;
    app->change.reason = app->reason;
    discharge(app);
}

static int finish(koala_app *app);

static int heard_change(koala_app *app, const Note *note) {
    Parts parts;
    long number, at, own = app->own_number;
    int wrong;
    memset(&parts, 0, sizeof parts);
    if (take_number(note, "change", &number) || take_number(note, "at", &at)) return -1;
    if (number == app->number && app->state == CHANGING) return 0;
    int again = number == app->number && app->state == DONE;
    if (again && app->change.number == number) {
        say(app, "done change=%ld", number);
        return 0;
    }
    if (number <= app->ended && (app->state == RUNNING || app->state == LEFT)) return 0;
    if (app->state != NEW && app->state != WAITING && !again) return does_not_follow(app, note);
    if (app->state == WAITING && (number != app->number || at != app->at))
        return failed("change %ld at %ld is not %ld at %ld, for which this process waits", number, at, app->number, app->at);
    if (word(note, "rank") && take_number(note, "rank", &own)) return -1;
    wrong = read_parts(app, note, own, number, &parts) || read_bounds(note, app);
    if (!wrong) {
        app->own_number = (int)own;
        take_change(app, note, number, at, &parts);
        if (again) finish(app);
    }
    free(parts.members.member);
    free(parts.leavers.member);
    free(parts.old.member);
    free(parts.joiners.member);
    return wrong ? -1 : 0;
}

static int heard_resume(koala_app *app, const Note *note) {
    long number;
    if (take_number(note, "change", &number)) return -1;
    if (number <= app->ended && (app->state == RUNNING || app->state == LEFT)) return 0;
    if (app->state != DONE || number != app->number)
        return failed("resume change=%ld does not follow: this process is %s", number, standing(app));
    app->ended = number;
    if (app->change.number == number && app->change.rank < 0) {
        app->state = LEFT;
        attend(app, 1);
    } else
        run(app);
    return 0;
}

static void heard_fail(koala_app *app, const Note *note) {
    const char *text = word(note, "text");
    if (!text || !*text) text = "koala has refused something and does not say what";
    snprintf(app->failure, sizeof app->failure, "%s", text);
    show(app, text);
    if (app->state == WAITING) run(app);
}

static int heard_ends(koala_app *app, const Note *note) {
    const char *near = word(note, "near");
    long left, warn = 0;
    long long ends_at;
    if (take_number(note, "in", &left) || (word(note, "warn") && take_number(note, "warn", &warn))) return -1;
    ends_at = milliseconds() + left * 1000LL;
    __atomic_store_n(&app->ends_at, ends_at, __ATOMIC_SEQ_CST);
    __atomic_store_n(&app->near_at, warn ? ends_at - warn * 1000LL : 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&app->ending, near && !strcmp(near, "1"), __ATOMIC_SEQ_CST);
    return 0;
}

static void negotiate_again(koala_app *app);

static int heard(koala_app *app, const Note *note) {
    if (!strcmp(note->verb, "welcome")) return heard_welcome(app, note);
    if (!strcmp(note->verb, "when")) return heard_when(app, note);
    if (!strcmp(note->verb, "stop")) return heard_stop(app, note);
    if (!strcmp(note->verb, "abandon")) return heard_abandon(app, note);
    if (!strcmp(note->verb, "change")) return heard_change(app, note);
    if (!strcmp(note->verb, "resume")) return heard_resume(app, note);
    if (!strcmp(note->verb, "ends")) return heard_ends(app, note);
    if (!strcmp(note->verb, "away")) {
        out_of_contact(app);
        return 0;
    }
    if (!strcmp(note->verb, "error")) { /* for people, and never answered */
        const char *text = word(note, "text");
        if (text && *text) show(app, text);
        return 0;
    }
    if (!strcmp(note->verb, "fail")) {
        heard_fail(app, note);
        return 0;
    }
    if (strcmp(note->verb, "who")) return failed("%s is not known here", note->verb);
    say_hello(app);
    negotiate_again(app);
    return 0;
}

/* The state of the process: what the program does. */

/* The program is at the point that it has just counted, because attention was set. */
static int stand(koala_app *app) {
    if (app->state == CHANGING || app->state == DONE || app->state == LEFT || app->state == NEW) {
        __atomic_sub_fetch(&app->reached, 1, __ATOMIC_SEQ_CST);
        if (app->state == LEFT) return failed("point() in a process that was taken out: it calls leave(), and exits");
        return failed("point() before done(): change %ld is not finished", app->number);
    }
    if (app->state == ARMED && count_of(app) >= app->at) {
        app->state = WAITING;
        say(app, "waiting change=%ld at=%ld", app->number, app->at);
    }
    return 0;
}

static int finish(koala_app *app) {
    if (app->state == DONE) return 0;
    if (app->state != CHANGING) return failed("done() without a change: this process is %s", standing(app));
    app->state = DONE;
    say(app, "done change=%ld", app->number);
    return 0;
}

static int begin_leaving(koala_app *app) {
    if ((app->state == CHANGING || app->state == DONE) && app->change.rank < 0)
        return failed("leave() before done(): change %ld is not finished", app->number);
    if (app->state != LEFT) return failed("leave() of a process that was not taken out: this process is %s", standing(app));
    app->leaving = 1;
    say(app, "leaving");
    return 0;
}

/* Negotiations. */

static int place_of(const koala_app *app, const NT_Negotiation *negotiation) {
    return (int)(negotiation - app->endpoint.kept);
}

static long expected(const koala_app *app) {
    long size = app->members.size;
    for (int i = 0; i < NT_MOST_KEPT; i++) size += app->coming[i];
    return size;
}

static Wish *wish_of(koala_app *app, const NT *nt) {
    for (int i = 0; nt->initiator == NT_APPLICATION && i < MOST_WISHES; i++)
        if (app->wish[i].id[0] && !strcmp(app->wish[i].id, nt->agreement_id)) return &app->wish[i];
    return NULL;
}

static void settle(koala_app *app, const NT *nt, long granted, const char *reason) {
    Wish *wish = wish_of(app, nt);
    if (!wish || wish->settled) return;
    wish->settled = 1;
    wish->granted = granted;
    if (!granted || *reason) snprintf(wish->reason, sizeof wish->reason, "%s", reason);
}

static void send_template(koala_app *app, const NT *nt) {
    char *data = allocated(NT_LARGEST + 1, 1);
    int size = NT_Write(nt, data, NT_LARGEST + 1);
    if (size > 0) put_frame(app, data, (size_t)size);
    free(data);
}

/* How many processors the program gets by an agreement; below 0: how many it gives up. */
static long signed_quantity(const NT *nt) {
    long number = NT_Quantity(nt, "CPU");
    return nt->direction == 's' ? -number : number;
}

static void agreed(koala_app *app, NT_Negotiation *negotiation) {
    const NT *nt = &negotiation->standing;
    long *coming = &app->coming[place_of(app, negotiation)];
    if (!*coming) *coming = signed_quantity(nt);
    settle(app, nt, NT_Quantity(nt, "CPU"), nt->reason);
}

/* Whether a growth must wait because more may come by another negotiation: 2 + 2 + 4, of which the 4 are there first, would
 * be 6. */
static int must_wait(const koala_app *app) {
    if (app->rule == ANY || (app->rule == MULTIPLE && app->members.size % app->step == 0)) return 0;
    for (int i = 0; i < MOST_WISHES; i++)
        if (app->wish[i].id[0] && !app->wish[i].settled) return 1;
    for (int i = 0; i < NT_MOST_KEPT; i++)
        if (app->coming[i]) return 1;
    return 0;
}

/* Fills in the answer to an offer; -1: the program's function has failed. */
static int decide(koala_app *app, const NT *offer, NT *answer) {
    long size = expected(app);
    int left = 0, changed = 0, waits = offer->direction != 's' && offer->initiator != NT_APPLICATION && must_wait(app);
    *answer = *offer;
    answer->round = 0;
    for (int i = 0; i < offer->resources; i++) {
        NT_Resource *one = &answer->resource[i];
        if (one->status == NT_REJECTED) continue;
        long number = 0;
        if (!strcmp(one->type, "CPU") && !waits)
            number = offer->direction == 's' ? accept_shrink(app, size, one->quantity) : accept_growth(app, size, one->quantity);
        if (number < 0) return -1;
        size += offer->direction == 's' ? -number : number;
        if (!strcmp(one->type, "MEM") && !waits) number = one->quantity; /* with each processor, as it was asked for */
        if (number != one->quantity && (one->fixed || number < one->minimum)) number = 0;
        if (number < 1 && !one->optional) {
            char reason[160];
            snprintf(reason, sizeof reason, "%ld %s cannot be taken", one->quantity, one->type);
            NT_Say(answer, NT_REJECTED, reason);
            return 0;
        }
        if (number < 1)
            one->status = NT_REJECTED;
        else
            left++, changed |= number != one->quantity, one->quantity = number;
    }
    if (!left)
        NT_Say(answer, NT_REJECTED, "nothing that is offered can be taken");
    else
        NT_Say(answer, changed ? NT_NEGOTIATION : NT_ACCEPTED, "");
    for (int i = 0; changed && i < answer->resources; i++) answer->resource[i].minimum = answer->resource[i].maximum = 0;
    return 0;
}

static void answer_offer(koala_app *app, NT_Negotiation *negotiation) {
    NT *offer = &app->offer, *answer = &app->answer;
    Wish *wish = wish_of(app, offer);
    if (wish) snprintf(wish->reason, sizeof wish->reason, "%s", offer->reason);
    app->coming[place_of(app, negotiation)] = 0;
    if (decide(app, offer, answer)) {
        refuse(app);
        *answer = *offer;
        NT_Say(answer, NT_REJECTED, error_text);
    }
    if (NT_Tell(&app->endpoint, answer, milliseconds())) {
        *answer = *offer;
        NT_Say(answer, NT_REJECTED, NT_Error());
        if (NT_Tell(&app->endpoint, answer, milliseconds())) return;
    }
    send_template(app, answer);
    if (answer->status == NT_REJECTED)
        settle(app, offer, 0, offer->reason[0] ? offer->reason : answer->reason);
    else /* counted from now on: another offer may be here before this is agreed on */
        app->coming[place_of(app, negotiation)] = signed_quantity(answer);
}

static void negotiation_ended(koala_app *app, NT_Negotiation *negotiation) {
    app->coming[place_of(app, negotiation)] = 0;
    settle(app, &negotiation->standing, 0, negotiation->reason);
}

static void negotiation_moved(koala_app *app, NT_Negotiation *negotiation) {
    switch (negotiation->state) {
        case NT_IS_ASKED:
            app->offer = negotiation->standing;
            answer_offer(app, negotiation);
            break;
        case NT_IS_ACCEPTED:
            app->answer = negotiation->standing;
            NT_Say(&app->answer, NT_COMMITTED, "");
            if (!NT_Tell(&app->endpoint, &app->answer, milliseconds())) send_template(app, &app->answer);
            /* fall through */
        case NT_IS_AGREED:
            agreed(app, negotiation);
            break;
        case NT_IS_CONSUMED:
            agreed(app, negotiation);
            app->coming[place_of(app, negotiation)] = 0;
            break;
        default:
            negotiation_ended(app, negotiation);
    }
}

static int heard_template(koala_app *app, const char *data, size_t size) {
    NT_Negotiation *happened;
    if (NT_Read(data, size, &app->offer)) return failed("%s", NT_Error());
    if (app->offer.status == NT_ERROR && !app->offer.resources) {
        failed("koala could not read what was said: %s", app->offer.reason);
        refuse(app);
        return 0;
    }
    if (NT_Hear(&app->endpoint, &app->offer, milliseconds(), &happened, &app->answer)) send_template(app, &app->answer);
    if (happened) negotiation_moved(app, happened);
    return 0;
}

static void negotiate_again(koala_app *app) {
    for (int i = 0; i < NT_MOST_KEPT; i++)
        if (NT_Again(&app->endpoint, i, &app->answer)) send_template(app, &app->answer);
}

static void end_overdue(koala_app *app) {
    NT_Negotiation *overdue;
    while ((overdue = NT_Overdue(&app->endpoint, milliseconds(), &app->answer))) {
        send_template(app, &app->answer);
        negotiation_ended(app, overdue);
    }
}

/* Sends the offer to grow or to shrink. */
static Wish *begin_wish(koala_app *app, char direction, int number, int memory, int mandatory) {
    long size = expected(app), after = size + (direction == 'g' ? number : -(long)number);
    Wish *wish = NULL;
    if (memory < 0) return failed("the memory is in MiB, 0 or more, not %d", memory), NULL;
    if (number < 1) return failed("the number of processors is 1 or more, not %d", number), NULL;
    if (app->state == CHANGING || app->state == DONE || app->state == LEFT)
        return failed("a process asks for processors when it is in no change, not while %s", STATE[app->state]), NULL;
    if (after < app->minimum || after > app->maximum)
        return failed("%ld processors, %ld and %d %s, are outside the bounds of the job, %ld to %ld", after, size, number,
                      direction == 'g' ? "more" : "fewer", app->minimum, app->maximum), NULL;
    for (int i = 0; i < MOST_WISHES; i++)
        if (!app->wish[i].id[0]) wish = &app->wish[i];
    if (!wish) return failed("too many negotiations are open"), NULL;
    memset(wish, 0, sizeof *wish);
    snprintf(wish->id, sizeof wish->id, "%d-%ld", app->own_number, ++app->asked);
    NT_Create(&app->answer, wish->id, NT_APPLICATION, app->host, app->head[0] ? app->head : "localhost");
    app->answer.direction = direction;
    app->answer.obligation = mandatory ? 'm' : 'v';
    app->answer.answer_within = mandatory ? MANDATORY_PATIENCE : VOLUNTARY_PATIENCE;
    NT_Add(&app->answer, "CPU", number);
    if (memory) NT_Add(&app->answer, "MEM", memory)->fixed = 1;
    if (NT_Tell(&app->endpoint, &app->answer, milliseconds())) {
        wish->id[0] = 0;
        return failed("%s", NT_Error()), NULL;
    }
    send_template(app, &app->answer);
    return wish;
}

/* The thread. */

static int connected(koala_app *app) {
    int stream = NT_ConnectUnix(app->path);
    if (stream < 0) return failed("%s", NT_Error());
    fcntl(stream, F_SETFD, FD_CLOEXEC);
    fcntl(stream, F_SETFL, O_NONBLOCK);
#ifdef SO_PEERCRED
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (!getsockopt(stream, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid != geteuid()) {
        close(stream);
        return failed("it belongs to user %ld", (long)peer.uid);
    }
#endif
    return stream;
}

static int send_waiting(koala_app *app, int stream) {
    while (app->waiting) {
        ssize_t sent = send(stream, app->output, app->waiting, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        app->waiting -= (size_t)sent;
        memmove(app->output, app->output + sent, app->waiting);
    }
    return 0;
}

static void take_payload(koala_app *app, char *payload, size_t size) {
    Note note;
    char problem[512];
    int wrong = payload[0] == '<' ? heard_template(app, payload, size) : read_note(payload, size, &note) || heard(app, &note);
    if (!wrong) return;
    snprintf(problem, sizeof problem, "%s", error_text);
    failed("what koala has said cannot be followed: %.400s", problem);
    refuse(app);
}

/* Takes the frames that are complete. Returns -1 when what has come is no frame. */
static int take_frames(koala_app *app, int *heard_any) {
    size_t used = 0;
    for (;;) {
        char *at = app->received + used, header[HEADER + 1] = {0};
        size_t left = app->got - used, digits = left < HEADER ? left : HEADER - 1;
        long size;
        memcpy(header, at, left < HEADER ? left : HEADER);
        if (strspn(header, "0123456789") < digits || (left >= HEADER && header[HEADER - 1] != '\n'))
            return failed("what came from koala cannot be read: a frame begins with its size in eight digits and a line feed");
        if (left < HEADER) break;
        header[HEADER - 1] = 0;
        size = atol(header);
        if (size < 1 || size > LARGEST_FRAME)
            return failed("what came from koala cannot be read: the size of a frame is %ld", size);
        if (left < HEADER + (size_t)size) break;
        char *payload = allocated((size_t)size + 1, 1);
        memcpy(payload, at + HEADER, (size_t)size);
        used += HEADER + (size_t)size;
        *heard_any = 1;
        take_payload(app, payload, (size_t)size);
        free(payload);
    }
    app->got -= used;
    memmove(app->received, app->received + used, app->got);
    return 0;
}

/* Waits for what happens next, without the lock. Returns what the socket is ready for, or -1. */
static int wait_for_events(koala_app *app, int stream, int writing, long long deadline) {
    struct pollfd one[2] = {{stream, (short)(POLLIN | (writing ? POLLOUT : 0)), 0}, {app->wake[0], POLLIN, 0}};
    char drained[64];
    long long rest = deadline ? deadline - milliseconds() : -1;
    if (deadline && rest < 0) rest = 0;
    if (poll(one, 2, rest > 1000000 ? 1000000 : (int)rest) < 0) return errno == EINTR ? 0 : -1;
    if (one[1].revents)
        while (read(app->wake[0], drained, sizeof drained) > 0) continue;
    return one[0].revents;
}

/* Receives what is there. Returns -1 when the connection has ended. */
static int receive(koala_app *app, int stream) {
    ssize_t more = recv(stream, app->received + app->got, LARGEST_FRAME + HEADER - app->got, 0);
    if (more < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (more <= 0) return -1;
    app->got += (size_t)more;
    return 0;
}

/* Speaks until the connection ends; under the lock but while it waits. Returns whether koala has said anything. */
static int speak(koala_app *app, int stream) {
    int heard_any = 0;
    app->broken[0] = 0;
    app->waiting = app->got = 0;
    say_hello(app);
    negotiate_again(app);
    while (app->waiting || !app->closing) {
        long long deadline = NT_Deadline(&app->endpoint);
        int writing = app->waiting > 0, ready;
        pthread_mutex_unlock(&app->lock);
        ready = wait_for_events(app, stream, writing, deadline);
        pthread_mutex_lock(&app->lock);
        if (ready < 0) break;
        if ((ready & POLLOUT) && send_waiting(app, stream)) app->waiting = 0; /* why nobody reads is still to be heard */
        if ((ready & ~POLLOUT) && receive(app, stream)) break;
        if (take_frames(app, &heard_any)) {
            refuse(app);
            send_waiting(app, stream);
            break;
        }
        end_overdue(app);
        pthread_cond_broadcast(&app->changed);
    }
    return heard_any;
}

/* Waits for so many milliseconds, or until the connection is to be closed. */
static void pause_for(koala_app *app, long pause) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += pause / 1000;
    until.tv_nsec += pause % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (!app->closing && pthread_cond_timedwait(&app->changed, &app->lock, &until) != ETIMEDOUT) continue;
}

static void *connect_again_and_again(void *of) {
    koala_app *app = of;
    long pause = FIRST_PAUSE, patience = JOIN_PATIENCE;
    long long since = milliseconds();
    pthread_mutex_lock(&app->lock);
    while (!app->closing) {
        int stream = connected(app);
        if (stream >= 0) {
            if (speak(app, stream)) pause = FIRST_PAUSE;
            close(stream);
            out_of_contact(app);
            since = milliseconds();
            patience = LONGEST_SEPARATION;
            for (NT_Negotiation *lost; (lost = NT_Lose(&app->endpoint));) negotiation_ended(app, lost);
        } else if (milliseconds() - since > patience && !app->broken[0]) {
            snprintf(app->broken, sizeof app->broken, "there is no connection with koala by %.200s: %.200s", app->path, error_text);
            show(app, app->broken);
        }
        pthread_cond_broadcast(&app->changed);
        if (!app->closing) pause_for(app, pause);
        pause = smaller(pause * 2, LONGEST_PAUSE);
    }
    app->finished = 1;
    pthread_cond_broadcast(&app->changed);
    pthread_mutex_unlock(&app->lock);
    return NULL;
}

static int start_thread(koala_app *app) {
    sigset_t all, before;
    pthread_condattr_t monotonic;
    if (pipe(app->wake)) return failed("cannot make a pipe: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        fcntl(app->wake[i], F_SETFD, FD_CLOEXEC);
        fcntl(app->wake[i], F_SETFL, O_NONBLOCK);
    }
    app->received = allocated(LARGEST_FRAME + HEADER, 1);
    pthread_mutex_init(&app->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&app->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    app->threaded = 1;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&app->lock); /* what koala says is heard when join waits */
    int problem = pthread_create(&app->thread, NULL, connect_again_and_again, app);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!problem) return 0;
    pthread_mutex_unlock(&app->lock);
    app->finished = 2; /* there is no thread */
    return failed("cannot start a thread: %s", strerror(problem));
}

/* Waits until the state is no longer this one, or until a wish is settled. The lock is held. */
static int wait_while(koala_app *app, enum State state, const Wish *wish) {
    app->failure[0] = 0;
    while ((wish ? !wish->settled : app->state == state) && !app->failure[0]) {
        if (app->broken[0]) return failed("%s", app->broken);
        if (app->finished) return failed("the connection with koala was closed");
        pthread_cond_wait(&app->changed, &app->lock);
    }
    return app->failure[0] ? failed("%s", app->failure) : 0;
}

/* The calls. */

static void release(koala_app *app) {
    if (app->threaded) {
        pthread_mutex_destroy(&app->lock);
        pthread_cond_destroy(&app->changed);
        close(app->wake[0]);
        close(app->wake[1]);
    }
    free(app->members.member);
    free(app->old.member);
    free(app->leavers.member);
    free(app->joiners.member);
    free(app->reason);
    free(app->path);
    free(app->output);
    free(app->received);
    free(app);
}

void koala_app_close(koala_app *app) {
    struct timespec until;
    if (!app) return;
    if (app->threaded && app->finished != 2) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += FAREWELL_PATIENCE / 1000;
        pthread_mutex_lock(&app->lock);
        app->closing = 1;
        if (write(app->wake[1], "x", 1) < 0 && errno != EAGAIN) app->waiting = 0;
        pthread_cond_broadcast(&app->changed);
        while (!app->finished && pthread_cond_timedwait(&app->changed, &app->lock, &until) != ETIMEDOUT) continue;
        app->waiting = 0; /* it has had its time */
        if (write(app->wake[1], "x", 1) < 0) errno = 0;
        pthread_mutex_unlock(&app->lock);
        pthread_join(app->thread, NULL);
    }
    release(app);
}

static void be_rigid(koala_app *app) {
    static const char *const started_with[][2] = {{"KOALA_RANK", "KOALA_SIZE"}, {"PMI_RANK", "PMI_SIZE"}};
    const char *addresses = getenv("KOALA_ADDRESSES");
    long rank = 0, size = 1, commas = 0;
    for (int i = 1; i >= 0; i--) {
        const char *first = getenv(started_with[i][0]), *second = getenv(started_with[i][1]);
        long one = first ? whole(first) : -1, all = second ? whole(second) : -1;
        if (one >= 0 && one < all) rank = one, size = all;
    }
    for (const char *at = addresses ? addresses : ""; *at; at++) commas += *at == ',';
    app->members.size = (int)size;
    app->members.member = allocated((size_t)size, sizeof *app->members.member);
    for (int i = 0; i < size; i++) {
        size_t length = addresses && commas + 1 == size ? strcspn(addresses, ",") : 0;
        koala_app_member *one = &app->members.member[i];
        one->rank = i;
        if (length && length < sizeof one->address) memcpy(one->address, addresses, length);
        if (addresses && commas + 1 == size) addresses += length + (addresses[length] == ',');
    }
    strcpy(app->members.member[rank].contact, app->contact);
    app->own_number = (int)rank;
    run(app);
}

/* Is where an earlier process was that ended in a change, if there was one: it is done here. */
static void come_back(koala_app *app) {
    const char *again = getenv("KOALA_APP_RESUME");
    long number, at;
    if (!again || sscanf(again, "%ld %ld", &number, &at) != 2 || number < 1 || at < 0) return;
    app->state = DONE;
    app->number = number;
    app->at = app->reached = at;
}

static int begin_joining(koala_app *app, const char *path) {
    const char *rank = getenv("KOALA_RANK");
    struct utsname name;
    snprintf(app->host, sizeof app->host, "%s", uname(&name) ? "localhost" : name.nodename);
    for (char *at = app->host; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("._:-", *at)) *at = '-';
    app->own_number = rank && whole(rank) >= 0 ? (int)whole(rank) : 0;
    app->endpoint.side = NT_APPLICATION;
    app->path = allocated(strlen(path) + 1, 1);
    strcpy(app->path, path);
    attend(app, 1);
    if (*app->mpi) come_back(app);
    if (start_thread(app)) return -1;
    int wrong = wait_while(app, app->state, NULL);
    pthread_mutex_unlock(&app->lock);
    return wrong;
}

koala_app *koala_app_join(const char *sizes, koala_app_sizing function, void *context, const char *contact) {
    return koala_app_join_mpi("", sizes, function, context, contact);
}

koala_app *koala_app_join_mpi(const char *method, const char *sizes, koala_app_sizing function, void *context,
                              const char *contact) {
    const char *path = getenv("KOALA_APP_SOCKET");
    koala_app *app = allocated(1, sizeof *app);
    app->function = function;
    app->context = context;
    app->minimum = 1;
    app->maximum = LARGEST_NUMBER;
    app->mpi = !strcmp(method, "spawn") ? " spawn=1" : !strcmp(method, "restart") ? " spawn=0 restart=1" : "";
    int wrong = take_rule(app, sizes);
    if (!wrong && *method && !*app->mpi) wrong = failed("mpi is spawn or restart, not '%.60s'", method);
    if (!wrong && (strlen(contact ? contact : "") > LARGEST_CONTACT || !is_utf8(contact ? contact : "")))
        wrong = failed("contact is a text of at most %d bytes", LARGEST_CONTACT);
    if (wrong) {
        show(app, error_text);
        koala_app_close(app);
        return NULL;
    }
    strcpy(app->contact, contact ? contact : "");
    if (!path || !*path)
        be_rigid(app);
    else if (begin_joining(app, path)) {
        koala_app_close(app);
        return NULL;
    }
    return app;
}

/* Makes a step of the program under the lock, and waits while the state is this one. */
static int acted(koala_app *app, int (*step)(koala_app *), enum State state) {
    pthread_mutex_lock(&app->lock);
    int wrong = step(app) ? refuse(app) : wait_while(app, state, NULL);
    pthread_mutex_unlock(&app->lock);
    return wrong;
}

int koala_app_point(koala_app *app, const koala_app_change **change) {
    __atomic_add_fetch(&app->reached, 1, __ATOMIC_SEQ_CST);
    *change = NULL;
    if (!__atomic_load_n(&app->attention, __ATOMIC_SEQ_CST)) return 0;
    if (acted(app, stand, WAITING)) return -1;
    *change = koala_app_present_change(app);
    return *change != NULL;
}

int koala_app_done(koala_app *app) { return app->threaded ? acted(app, finish, DONE) : 0; }

int koala_app_leave(koala_app *app) {
    if (app->threaded && acted(app, begin_leaving, NEW)) return -1;
    koala_app_close(app);
    return 0;
}

static int ask(koala_app *app, char direction, int number, int memory, int mandatory, char *reason, size_t room) {
    int granted = -1;
    if (!app->threaded) {
        if (reason && room) snprintf(reason, room, "the program does not run as an adaptive job of koala");
        return 0;
    }
    pthread_mutex_lock(&app->lock);
    Wish *wish = begin_wish(app, direction, number, memory, mandatory);
    if (!wish)
        refuse(app);
    else {
        if (!wait_while(app, NEW, wish)) granted = (int)wish->granted;
        if (granted >= 0 && reason && room) snprintf(reason, room, "%s", wish->reason);
        wish->id[0] = 0;
    }
    pthread_mutex_unlock(&app->lock);
    return granted;
}

int koala_app_request(koala_app *app, int number, int mandatory, char *reason, size_t room) {
    return ask(app, 'g', number, 0, mandatory, reason, room);
}

int koala_app_request_memory(koala_app *app, int number, int memory, int mandatory, char *reason, size_t room) {
    return ask(app, 'g', number, memory, mandatory, reason, room);
}

int koala_app_give_back(koala_app *app, int number, char *reason, size_t room) {
    return ask(app, 's', number, 0, 0, reason, room);
}

int koala_app_rank(const koala_app *app) { return own_position(app); }

int koala_app_size(const koala_app *app) { return app->members.size; }

long koala_app_reached(const koala_app *app) { return count_of(app); }

const koala_app_member *koala_app_members(const koala_app *app) { return app->members.member; }

double koala_app_time_left(const koala_app *app) {
    long long ends_at = __atomic_load_n(&app->ends_at, __ATOMIC_SEQ_CST), left = ends_at - milliseconds();
    return !ends_at ? -1.0 : left > 0 ? (double)left / 1000 : 0.0;
}

int koala_app_ending(const koala_app *app) {
    long long near_at = __atomic_load_n(&app->near_at, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&app->ending, __ATOMIC_SEQ_CST) || (near_at && milliseconds() >= near_at);
}

const koala_app_change *koala_app_present_change(const koala_app *app) {
    koala_app *inner = (koala_app *)app;
    if (!app->threaded) return NULL;
    pthread_mutex_lock(&inner->lock);
    int has = app->state == CHANGING || app->state == DONE;
    pthread_mutex_unlock(&inner->lock);
    return has ? &app->change : NULL;
}
