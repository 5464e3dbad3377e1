/* SPDX-License-Identifier: Apache-2.0 */
#include "orders.h"

#include <stdlib.h>
#include <string.h>

static void nothing(void)
{
}

static const struct orders none = {NULL, NULL, nothing, nothing};

const struct orders *orders_find(const char *sizes, int first, enum resize_method *method)
{
    const char *name = getenv("RESIZE_METHOD");

    (void)sizes;
    (void)first;
    if (name == NULL) {
        *method = RESIZE_RIGID;
        return &none;
    }
    if (strcmp(name, "spawn") != 0 && strcmp(name, "restart") != 0)
        resize_fail("RESIZE_METHOD: found \"%s\", allowed is spawn or restart", name);
    *method = strcmp(name, "spawn") == 0 ? RESIZE_SPAWN : RESIZE_RESTART;
    return &orders_by_plan;
}
