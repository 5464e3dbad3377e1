/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A DRMAA 1.0 library for Slurm, for tests: as much of the interface as the helper uses, by sbatch(1). A bulk is one
 * array, as with slurm-drmaa.
 *
 * -DVERSION="\"1.1.6\"": which release of slurm-drmaa it says it is.
 * -DSYSTEM="\"Slurm 22.05\"": which batch system it says it is for.
 * -DABORT: it ends the process where a session begins, as pbs-drmaa does without its server.
 * -DLOG="\"/path\"": each call that submits leaves a line there.
 * -DSBATCH="\"/path/sbatch\"": the command by which it submits.
 * -DUSES="\"libslurm.so.45\"": the library of Slurm that it seems to be linked with.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION "1.1.6"
#endif
#ifndef SYSTEM
#define SYSTEM "Slurm 22.05"
#endif

#ifndef SBATCH
#define SBATCH "sbatch"
#endif

#ifdef USES
const char uses[] = "\0" USES;
#endif

#define OK 0
#define INVALID_JOB 18
#define DENIED 17
#define INTERNAL 1
#define NO_MORE 25
#define MOST 64

typedef struct {
	char *name, *command, *directory, *output, *native;
	char *arguments[MOST];
	int held;
} job_template;

typedef struct {
	char array[32];
	int next, last;
} job_ids;

static int say(char *buffer, size_t size, const char *text)
{
	snprintf(buffer, size, "%s", text);
	return OK;
}

int drmaa_init(const char *contact, char *error, size_t size)
{
#ifdef ABORT
	abort();
#endif
	return OK;
}

int drmaa_exit(char *error, size_t size) { return OK; }
int drmaa_get_contact(char *b, size_t n, char *e, size_t s) { return say(b, n, ""); }
int drmaa_get_DRM_system(char *b, size_t n, char *e, size_t s) { return say(b, n, SYSTEM); }
int drmaa_get_DRMAA_implementation(char *b, size_t n, char *e, size_t s) { return say(b, n, "DRMAA for " SYSTEM " " VERSION); }
int drmaa_version(unsigned *major, unsigned *minor, char *e, size_t s) { *major = 1; *minor = 0; return OK; }
const char *drmaa_strerror(int code) { return "error"; }

int drmaa_allocate_job_template(void **t, char *e, size_t s) { *t = calloc(1, sizeof(job_template)); return OK; }

int drmaa_delete_job_template(void *t, char *e, size_t s) { free(t); return OK; }

int drmaa_set_attribute(job_template *t, const char *name, const char *value, char *e, size_t s)
{
	if (!strcmp(name, "drmaa_job_name"))
		t->name = strdup(value);
	else if (!strcmp(name, "drmaa_remote_command"))
		t->command = strdup(value);
	else if (!strcmp(name, "drmaa_wd"))
		t->directory = strdup(value);
	else if (!strcmp(name, "drmaa_output_path"))
		t->output = strdup(value + 1); /* without the colon */
	else if (!strcmp(name, "drmaa_native_specification"))
		t->native = strdup(value);
	else if (!strcmp(name, "drmaa_js_state"))
		t->held = !strcmp(value, "drmaa_hold");
	return OK;
}

int drmaa_set_vector_attribute(job_template *t, const char *name, const char **values, char *e, size_t s)
{
	for (int i = 0; !strcmp(name, "drmaa_v_argv") && values[i] && i < MOST - 1; i++)
		t->arguments[i] = strdup(values[i]);
	return OK;
}

/* The arguments of sbatch; --time is hours:minutes with slurm-drmaa, minutes there. */
static int words_of(job_template *t, int first, int last, char **words)
{
	int n = 0;
	char *mark, *word;
	words[n++] = SBATCH;
	words[n++] = "--parsable";
	words[n++] = "--ignore-pbs";
	words[n++] = "--export=ALL";
	asprintf(&words[n++], "--job-name=%s", t->name);
	asprintf(&words[n++], "--array=%d-%d", first, last);
	asprintf(&words[n++], "--chdir=%s", t->directory);
	if ((mark = strstr(t->output, "$drmaa_incr_ph$")))
		asprintf(&words[n++], "--output=%.*s%%a%s", (int)(mark - t->output), t->output, mark + 15);
	else
		asprintf(&words[n++], "--output=%s", t->output);
	if (t->held)
		words[n++] = "--hold";
	for (word = strtok(t->native ? t->native : strdup(""), " "); word && n < MOST - 1; word = strtok(NULL, " "))
		if (!strncmp(word, "--time=0:", 9))
			asprintf(&words[n++], "--time=%s", word + 9);
		else
			words[n++] = word;
	words[n] = NULL;
	return n;
}

static int sbatch(job_template *t, int first, int last, char *array, size_t room, char *error, size_t size)
{
	char *words[MOST] = {0}, answer[1024] = "";
	int in[2], out[2], status;
	pid_t child;
	FILE *script;
	ssize_t got;
	size_t all = 0;

	words_of(t, first, last, words);
	if (pipe(in) || pipe(out) || (child = fork()) < 0)
		return say(error, size, "no pipes, or no process"), INTERNAL;
	if (!child) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		dup2(out[1], 2);
		close(in[1]);
		close(out[0]);
		execvp(words[0], words);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	script = fdopen(in[1], "w");
	fprintf(script, "#!/bin/sh\nexec '%s'", t->command);
	for (int i = 0; t->arguments[i]; i++)
		fprintf(script, " '%s'", t->arguments[i]);
	fprintf(script, "\n");
	fclose(script);
	while (all < sizeof(answer) - 1 && (got = read(out[0], answer + all, sizeof(answer) - 1 - all)) > 0)
		all += got;
	close(out[0]);
	waitpid(child, &status, 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return say(error, size, answer), strstr(answer, "contact") ? INTERNAL : DENIED;
	snprintf(array, room, "%ld", strtol(answer, NULL, 10));
#ifdef LOG
	script = fopen(LOG, "a");
	fprintf(script, "%s %d\n", array, last - first + 1);
	fclose(script);
#endif
	return OK;
}

int drmaa_run_bulk_jobs(job_ids **found, job_template *t, int first, int last, int step, char *e, size_t s)
{
	job_ids *ids = calloc(1, sizeof(job_ids));
	int status = sbatch(t, first, last, ids->array, sizeof(ids->array), e, s);
	ids->next = first;
	ids->last = last;
	*found = ids;
	return status;
}

int drmaa_get_next_job_id(job_ids *ids, char *id, size_t n)
{
	if (ids->next > ids->last)
		return NO_MORE;
	snprintf(id, n, "%s_%d", ids->array, ids->next++);
	return OK;
}

void drmaa_release_job_ids(job_ids *ids) { free(ids); }

int drmaa_run_job(char *id, size_t n, job_template *t, char *e, size_t s) { return sbatch(t, 1, 1, id, n, e, s); }
int drmaa_control(const char *id, int action, char *e, size_t s) { return say(e, s, "job id not found"), INVALID_JOB; }
int drmaa_job_ps(const char *id, int *st, char *e, size_t s) { return say(e, s, "job id not found"), INVALID_JOB; }

/* What is not used, but must be there. */
#define UNUSED(name) int name(void) { return NO_MORE; }
UNUSED(drmaa_get_attribute)
UNUSED(drmaa_get_next_attr_name)
UNUSED(drmaa_get_next_attr_value)
UNUSED(drmaa_release_attr_names)
UNUSED(drmaa_release_attr_values)
UNUSED(drmaa_get_vector_attribute)
UNUSED(drmaa_get_attribute_names)
UNUSED(drmaa_get_vector_attribute_names)
UNUSED(drmaa_get_num_attr_names)
UNUSED(drmaa_get_num_attr_values)
UNUSED(drmaa_synchronize)
UNUSED(drmaa_wait)
UNUSED(drmaa_wifexited)
UNUSED(drmaa_wexitstatus)
UNUSED(drmaa_wifsignaled)
UNUSED(drmaa_wtermsig)
UNUSED(drmaa_wcoredump)
UNUSED(drmaa_wifaborted)
