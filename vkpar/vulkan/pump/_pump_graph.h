/* Graphs: command buffers that are recorded once, operation by operation, and submitted as often as wanted.
 *
 * What is recorded here has the barriers that eager operations have. Others record into the same buffers between
 * operations, and say so. One thread at a time uses a recording, and none does once its device is closed.
 */
#ifndef VKPAR_PUMP_GRAPH_H
#define VKPAR_PUMP_GRAPH_H

#include "_pump_launch.h"

enum { SIMULTANEOUS_USE = 4 };

struct vkp_recording {
    vkp_stream *stream;                  /* NULL: it was closed, and the pools are gone or given up */
    vkp_recording *next;                 /* of the stream */
    frame memory;                        /* its pools */
    recorder to;
    uint64_t operations;
};

/* Before the stream's device goes: what Python has dropped without a close goes with it. */
static void close_recordings(vkp_stream *s, int leak) {
    for (vkp_recording *r = s->recordings; r; r = r->next) {
        if (!leak) destroy_frame(s, &r->memory);
        r->stream = NULL;
    }
    s->recordings = NULL;
}

void vkp_recording_free(vkp_recording *r) {
    if (!r || forked) return;
    pthread_mutex_lock(&entry);
    if (r->stream) {
        vkp_recording **link = &r->stream->recordings;
        while (*link != r) link = &(*link)->next;
        *link = r->next;
        destroy_frame(r->stream, &r->memory);
    }
    pthread_mutex_unlock(&entry);
    free(r);
}

vkp_recording *vkp_recording_new(vkp_stream *s, int32_t *result) {
    vkp_recording *r = calloc(1, sizeof *r);
    *result = r ? SUCCESS : OUT_OF_HOST_MEMORY;
    if (!r) return NULL;
    pool_info info = {S_POOL, NULL, 0, s->family};
    pthread_mutex_lock(&entry);
    *result = s->shut ? SHUT : SUCCESS;
    if (*result == SUCCESS)
        *result = noted(s, CALL(create_pool), s->vk.create_pool(s->queue->device, &info, NULL, &r->memory.pool));
    if (*result == SUCCESS) {
        r->next = s->recordings;
        s->recordings = r;
    }
    pthread_mutex_unlock(&entry);
    if (*result != SUCCESS) {
        free(r);
        return NULL;
    }
    r->stream = s;
    r->to.vk = &s->vk;
    r->to.every = s->to.every;
    return r;
}

/* Begins the next command buffer, which may be pending several times at once. */
int32_t vkp_recording_begin(vkp_recording *r, uint64_t *commands) {
    void *made;
    vkp_stream *s = r->stream;
    allocate_info one = {S_ALLOCATE, NULL, r->memory.pool, 0, 1};
    int32_t result = noted(s, CALL(allocate), s->vk.allocate(s->queue->device, &one, &made));
    if (result != SUCCESS) return result;
    begin_info info = {S_BEGIN, NULL, SIMULTANEOUS_USE, NULL};
    result = noted(s, CALL(begin), s->vk.begin(made, &info));
    if (result != SUCCESS) return result;
    begin_recording(&r->to, made);
    *commands = (uint64_t)(uintptr_t)made;
    return SUCCESS;
}

int32_t vkp_recording_end(vkp_recording *r) {
    return noted(r->stream, CALL(end), r->stream->vk.end(r->to.commands));
}

/* Others recorded into the open command buffer. */
void vkp_recording_strange(vkp_recording *r) {
    r->to.bound = 0;
    r->to.nspans = 0;
    r->to.strange = 1;
}

/* The arguments of these are those of vkp_launch, vkp_copy and vkp_fill. */
int32_t vkp_recording_launch(vkp_recording *r, const vkp_plan *p, const char *addresses, const char *push) {
    uint64_t copied[p->bindings ? 2 * p->bindings : 1], set = 0;
    buffer_info buffers[p->bindings ? p->bindings : 1];
    memcpy(copied, addresses, p->bindings * 2 * sizeof *copied);
    int32_t result = bind_buffers(r->stream, &r->memory, p, copied, buffers, &set);
    if (result != SUCCESS) return result;
    record_dispatch(&r->to, p, buffers, set, push ? (const void *)push : p->push);
    r->operations++;
    return SUCCESS;
}

int32_t vkp_recording_copy(vkp_recording *r, uint32_t name, uint32_t n, const char *parts) {
    (void)name;
    copy_part *copied = malloc(n * sizeof *copied + 1);
    if (!copied) return OUT_OF_HOST_MEMORY;
    memcpy(copied, parts, n * sizeof *copied);
    r->operations++;
    record_copies(&r->to, copied, n);
    free(copied);
    return SUCCESS;
}

int32_t vkp_recording_fill(vkp_recording *r, uint32_t name, uint32_t n, const char *parts, uint32_t word) {
    (void)name;
    r->operations++;
    for (uint32_t i = 0; i < n; i++) {
        fill_part part;
        memcpy(&part, parts + i * sizeof part, sizeof part);
        record_fill(&r->to, &part, word);
    }
    return SUCCESS;
}

/* out: operations and barriers. */
void vkp_recording_stats(vkp_recording *r, uint64_t *out) {
    out[0] = r->operations;
    out[1] = r->to.barriers;
}

#endif
