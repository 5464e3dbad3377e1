/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of size given by hand, to try a program without koala.
 *
 *   RESIZE_METHOD=spawn RESIZE_PLAN="0:2 4:5 8:3" mpiexec -n 1 program
 *
 * starts on 2 processes, has 5 from point 4 on and 3 from point 8 on. The last ones leave; "8:-1-3" has the processes 1
 * and 3 leave. New processes get the hosts h1, h2 and so on. RESIZE_METHOD is spawn or restart. With RESIZE_ENDING=7 the
 * walltime is nearly over from point 7 on. */
#include "orders.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

static int hosts;
static long present; /* point */

/* Read what follows POINT: in the plan, and return what follows it. */
static const char *read_order(const char *text, struct order *order, int size)
{
    char *end;

    order->leaver = calloc((size_t)size, sizeof *order->leaver);
    if (*text == '-') {
        for (; *text == '-'; text = end) {
            int rank = (int)strtol(text + 1, &end, 10);
            if (rank < 1 || rank >= size || order->leaving == size)
                resize_fail("RESIZE_PLAN: found process %d, allowed is 1 to %d", rank, size - 1);
            order->leaver[order->leaving++] = rank;
        }
        return text;
    }
    int after = (int)strtol(text, &end, 10);
    if (end == text || after < 1)
        resize_fail("RESIZE_PLAN: found \"%s\", allowed is POINT:SIZE", text);
    for (; size > after; order->leaving++)
        order->leaver[order->leaving] = --size;
    order->joining = after - size;
    order->host = calloc((size_t)order->joining + 1, sizeof *order->host);
    for (int each = 0; each < order->joining; each++)
        snprintf(order->host[each], HOST_LENGTH, "h%d", ++hosts);
    return end;
}

/* Find what the plan says of a point. */
static int planned(struct order *order, long wanted, int size)
{
    const char *text = getenv("RESIZE_PLAN");
    long point, number = 0;
    char *end;

    while (text != NULL && *text != '\0') {
        point = strtol(text, &end, 10);
        if (end == text || *end != ':')
            resize_fail("RESIZE_PLAN: found \"%s\", allowed is POINT:SIZE", text);
        if (point == wanted) {
            read_order(end + 1, order, size);
            order->number = point == 0 ? 0 : number + 1;
            return 1;
        }
        number += point != 0;
        text = end;
        while (*text != '\0' && !isspace((unsigned char)*text))
            text++;
        while (isspace((unsigned char)*text))
            text++;
    }
    return 0;
}

static int plan_start(struct order *order)
{
    return planned(order, 0, 1);
}

static int plan_point(struct order *order, long point, int size)
{
    present = point;
    return planned(order, point, size);
}

static int plan_ending(void)
{
    const char *from = getenv("RESIZE_ENDING");

    return from != NULL && present >= strtol(from, NULL, 10);
}

static void nothing(void)
{
}

const struct orders orders_by_plan = {plan_start, plan_point, plan_ending, nothing, nothing, nothing};
