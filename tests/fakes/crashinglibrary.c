/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A DRMAA 1.0 library that crashes, for tests: as much of the interface as the helper uses. What it was asked to submit
 * stands in the file named by CRASHING_JOBS, one line for each job. While the file named by CRASHING_AT contains the name
 * of a function, that function reads through a null pointer. While the file named by CRASHING_GATE is there, a
 * submission does not end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK 0
#define NO_MORE 25

typedef struct { int next; } job_ids;

static void perhaps_crash(const char *function)
{
	char word[64] = "";
	FILE *file = fopen(getenv("CRASHING_AT"), "r");
	if (file) {
		if (fscanf(file, "%63s", word) != 1)
			word[0] = 0;
		fclose(file);
	}
	if (!strcmp(word, function))
		*(volatile int *)0 = 1;
}

int drmaa_init(const char *contact, char *error, size_t size) { perhaps_crash("init"); return OK; }
int drmaa_exit(char *error, size_t size) { return OK; }

static int say(char *buffer, size_t size, const char *text) { snprintf(buffer, size, "%s", text); return OK; }

int drmaa_get_contact(char *b, size_t n, char *e, size_t s) { return say(b, n, "here"); }
int drmaa_get_DRM_system(char *b, size_t n, char *e, size_t s) { return say(b, n, "PBS that crashes"); }
int drmaa_get_DRMAA_implementation(char *b, size_t n, char *e, size_t s) { return say(b, n, "crashing"); }
int drmaa_version(unsigned *major, unsigned *minor, char *e, size_t s) { *major = 1; *minor = 0; return OK; }
const char *drmaa_strerror(int code) { return "error"; }

int drmaa_allocate_job_template(void **t, char *e, size_t s) { *t = malloc(1); return OK; }
int drmaa_delete_job_template(void *t, char *e, size_t s) { free(t); return OK; }
int drmaa_set_attribute(void *t, const char *n, const char *v, char *e, size_t s) { return OK; }
int drmaa_set_vector_attribute(void *t, const char *n, const char **v, char *e, size_t s) { return OK; }

int drmaa_run_job(char *id, size_t n, const void *t, char *e, size_t s)
{
	int number = 1, character;
	FILE *file = fopen(getenv("CRASHING_JOBS"), "a+");
	if (!file)
		return 1;
	rewind(file);
	while ((character = fgetc(file)) != EOF)
		number += character == '\n';
	fprintf(file, "%d.here\n", number);
	fclose(file);
	while (getenv("CRASHING_GATE") && !access(getenv("CRASHING_GATE"), F_OK))
		usleep(1000);
	perhaps_crash("run_job");
	snprintf(id, n, "%d.here", number);
	return OK;
}

int drmaa_control(const char *id, int action, char *e, size_t s) { perhaps_crash("control"); return OK; }

int drmaa_job_ps(const char *id, int *status, char *e, size_t s)
{
	perhaps_crash("job_ps");
	*status = 0x20; /* running */
	return OK;
}

/* What is not used, but must be there. */
#define UNUSED(name) int name(void) { return NO_MORE; }
UNUSED(drmaa_get_attribute)
UNUSED(drmaa_get_next_attr_name)
UNUSED(drmaa_get_next_attr_value)
UNUSED(drmaa_get_next_job_id)
UNUSED(drmaa_release_attr_names)
UNUSED(drmaa_release_attr_values)
UNUSED(drmaa_release_job_ids)
UNUSED(drmaa_get_vector_attribute)
UNUSED(drmaa_get_attribute_names)
UNUSED(drmaa_get_vector_attribute_names)
UNUSED(drmaa_get_num_attr_names)
UNUSED(drmaa_get_num_attr_values)
UNUSED(drmaa_run_bulk_jobs)
UNUSED(drmaa_synchronize)
UNUSED(drmaa_wait)
UNUSED(drmaa_wifexited)
UNUSED(drmaa_wexitstatus)
UNUSED(drmaa_wifsignaled)
UNUSED(drmaa_wtermsig)
UNUSED(drmaa_wcoredump)
UNUSED(drmaa_wifaborted)
