/* SPDX-License-Identifier: Apache-2.0 */
#include "orders.h"

#include <stdlib.h>
#include <string.h>

static void nothing(void)
{
}

static const struct orders none = {NULL, NULL, NULL, nothing, nothing, nothing};

static enum resize_method method_named(const char *variable)
{
    const char *name = getenv(variable);

    if (name == NULL)
        return RESIZE_RIGID;
    if (strcmp(name, "spawn") != 0 && strcmp(name, "restart") != 0)
        resize_fail("%s: found \"%s\", allowed is spawn or restart", variable, name);
    return strcmp(name, "spawn") == 0 ? RESIZE_SPAWN : RESIZE_RESTART;
}

const struct orders *orders_find(const char *sizes, int first, enum resize_method *method)
{
    *method = method_named("KOALA_MPI_RESIZE");
    if (*method != RESIZE_RIGID)
        return first ? orders_from_koala(sizes, *method) : &none;
    *method = method_named("RESIZE_METHOD");
    return *method == RESIZE_RIGID ? &none : &orders_by_plan;
}
