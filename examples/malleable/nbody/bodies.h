/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies that attract each other, of which each process moves a part. Nothing here knows of a change of size. */
#ifndef BODIES_H
#define BODIES_H

#include <mpi.h>

struct body {
    double position[3], velocity[3], mass;
};

/* Make bodies [first, last) , the same for any division. The caller frees them. */
struct body *bodies_make(long first, long last);

/* Move this process' bodies [first, last) by one step of `dt` (leapfrog). The force on each is summed over the others in
 * their order, so that the result does not depend on the number of processes to the last bit. */
void bodies_step(MPI_Comm world, struct body *part, long total, double dt);

/* Return all bodies in the first process, NULL in the others. The caller frees them. */
struct body *bodies_gather(MPI_Comm world, const struct body *part, long total);

#endif
