/* Streams, and their frames: the ring of command buffers and descriptor pools that eager operations are recorded in. */
#ifndef VKPAR_PUMP_FRAMES_H
#define VKPAR_PUMP_FRAMES_H

#include "_pump_ledger.h"
#include "_pump_record.h"
#include "_pump_send.h"
#include "_pump_types.h"

/* What an entry returns besides VkResults: no buffer is free, wait for the oldest; the stream was closed; a fork; the
 * calling thread captures. */
enum { BUSY = 1001, SHUT = 1002, FORKED = 1003, CAPTURES = 1004 };
enum {
    FRAMES = 32,                         /* command buffers that may be pending */
    NAMES = 8,                           /* different operations that an error names */
};
/* A Vulkan function by its place in `calls`; the queue's own submit comes after them. */
#define CALL(member) (offsetof(calls, member) / sizeof(void *))
enum { SUBMIT = sizeof(calls) / sizeof(void *) };

typedef struct {
    uint64_t pool, value;                /* value: of the submission that it was last used for */
    void *commands;
    uint64_t *descriptors;               /* pools, where sets are written; those below `used` have sets in them */
    uint32_t ndescriptors, used;
} frame;

struct vkp_stream {
    vkp_queue *queue;
    calls vk;
    uint32_t family, rate;               /* rate: bytes a nanosecond that kernels move, for estimates */
    frame frames[FRAMES];                /* ring: those from head on are pending, oldest first */
    uint32_t nframes, head, pending;
    frame *open;
    recorder to;
    uint32_t count;                      /* operations in the open buffer */
    uint64_t cost_ns, looked, sent;      /* sent: when the last submission was */
    uint64_t apart;                      /* from which the next one is so far away, where the device is faster */
    int sealed;                          /* it was ended, and is not submitted: that failed, or is next */
    idle_fn wait_idle;                   /* the validation layer must be told what is done; else NULL */
    int32_t broken;                      /* it could not be ended: what it held is lost, and every call says so */
    uint32_t failed;                     /* the function that last failed */
    uint32_t names[NAMES], nnames;
    int refuses, shut, parked, stop, running;
    int captures;                        /* the thread `capturer` captures */
    pthread_t thread, capturer;
    pthread_cond_t wake;
    uint64_t operations, submissions, number; /* number: the ledger's */
    vkp_recording *recordings;           /* of graphs */
    vkp_trace *trace;                    /* NULL: nobody traces */
    uint32_t stamped;                    /* operations in the open buffer when the last timestamp was written */
};

static void note_fork(void) { forked = 1; }

static submit_info fill_one(one_submission *one, vkp_queue *q, void *command, uint64_t value);
static int32_t submit_one(vkp_queue *q, void *command, uint64_t value);
static void close_recordings(vkp_stream *s, int leak);

/* Passes on what a function returned, and notes which one failed. */
static int32_t noted(vkp_stream *s, uint32_t call, int32_t result) {
    if (result != SUCCESS) __atomic_store_n(&s->failed, call, __ATOMIC_RELAXED);
    return result;
}

static int32_t make_frame(vkp_stream *s, frame *f) {
    pool_info info = {S_POOL, NULL, TRANSIENT, s->family};
    int32_t result = noted(s, CALL(create_pool), s->vk.create_pool(s->queue->device, &info, NULL, &f->pool));
    if (result != SUCCESS) return result;
    allocate_info one = {S_ALLOCATE, NULL, f->pool, 0, 1};
    result = noted(s, CALL(allocate), s->vk.allocate(s->queue->device, &one, &f->commands));
    if (result != SUCCESS) s->vk.destroy_pool(s->queue->device, f->pool, NULL);
    return result;
}

static void destroy_frame(vkp_stream *s, frame *f) {
    for (uint32_t i = 0; i < f->ndescriptors; i++)
        s->vk.destroy_descriptors(s->queue->device, f->descriptors[i], NULL);
    free(f->descriptors);
    s->vk.destroy_pool(s->queue->device, f->pool, NULL);
}

/* Lets go of the frames that are done; those that are free lie behind the pending ones in the ring. Says whether the
 * device has run dry. */
static int retire_frames(vkp_stream *s) {
    uint64_t now = 0;
    if (s->queue->counter(s->queue->device, s->queue->timeline, &now) != SUCCESS) return 0;
    while (s->pending && s->frames[s->head].value <= now) {
        s->head = (s->head + 1) % s->nframes;
        s->pending--;
    }
    return now >= __atomic_load_n(&s->queue->submitted, __ATOMIC_ACQUIRE) && !is_sending(s->queue);
}

static int32_t reset_frame(vkp_stream *s, frame *f) {
    int32_t result = s->wait_idle ? settle(s->queue) : SUCCESS;
    if (result == SUCCESS && s->wait_idle) result = s->wait_idle(s->queue->queue);
    if (result == SUCCESS) result = noted(s, CALL(reset_pool), s->vk.reset_pool(s->queue->device, f->pool, 0));
    for (uint32_t i = 0; i < f->used && result == SUCCESS; i++)
        result = noted(s, CALL(reset_descriptors), s->vk.reset_descriptors(s->queue->device, f->descriptors[i], 0));
    f->used = 0;
    return result;
}

/* Opens a buffer. The ring grows only while no frame is pending out of turn, so that its order stays. */
static int32_t open_frame(vkp_stream *s) {
    frame *f;
    int32_t result;
    if (s->pending == s->nframes) retire_frames(s);
    /* Where one is used again behind a wait for the whole queue, others are made first: the queue may be held up. */
    if (s->pending < s->nframes && !(s->wait_idle && s->nframes < FRAMES)) {
        f = &s->frames[(s->head + s->pending) % s->nframes];
        result = reset_frame(s, f);
    } else if (s->nframes < FRAMES) {
        if (s->head) {                   /* turn the ring so that the oldest comes first */
            frame turned[FRAMES];
            for (uint32_t i = 0; i < s->nframes; i++) turned[i] = s->frames[(s->head + i) % s->nframes];
            memcpy(s->frames, turned, s->nframes * sizeof *turned);
            s->head = 0;
        }
        f = &s->frames[s->pending];      /* behind those that are pending, mostly all */
        s->frames[s->nframes] = *f;
        memset(f, 0, sizeof *f);
        result = make_frame(s, f);
        if (result == SUCCESS) s->nframes++;
        else *f = s->frames[s->nframes];
    } else {
        return BUSY;
    }
    if (result != SUCCESS) return result;
    begin_info info = {S_BEGIN, NULL, ONE_TIME, NULL};
    result = noted(s, CALL(begin), s->vk.begin(f->commands, &info));
    if (result != SUCCESS) return result;
    s->open = f;
    s->sealed = 0;
    s->count = s->nnames = 0;
    s->cost_ns = 0;
    begin_recording(&s->to, f->commands);
    return SUCCESS;
}

static int32_t add_descriptors(vkp_stream *s, frame *f) {
    uint64_t *more = realloc(f->descriptors, (f->ndescriptors + 1) * sizeof *more);
    if (!more) return OUT_OF_HOST_MEMORY;
    f->descriptors = more;
    pool_size size = {STORAGE_BUFFER, DESCRIPTORS};
    descriptor_pool_info info = {S_DESCRIPTOR_POOL, NULL, 0, SETS, 1, &size};
    int32_t result = s->vk.create_descriptors(s->queue->device, &info, NULL, &f->descriptors[f->ndescriptors]);
    if (result == SUCCESS) f->ndescriptors++;
    return noted(s, CALL(create_descriptors), result);
}

static int32_t allocate_set(vkp_stream *s, frame *f, uint64_t layout, uint64_t *set) {
    for (int attempt = 0; ; attempt++) {
        int32_t result = SUCCESS;
        if (!f->used || attempt) {
            if (f->used == f->ndescriptors) result = add_descriptors(s, f);
            if (result != SUCCESS) return result;
            f->used++;
        }
        sets_info info = {S_SETS, NULL, f->descriptors[f->used - 1], 1, &layout};
        result = s->vk.allocate_sets(s->queue->device, &info, set);
        if ((result != POOL_EMPTY && result != POOL_FRAGMENTED) || attempt)
            return noted(s, CALL(allocate_sets), result);
    }
}

/* What a dispatch does to memory, what it reads first. */
static uint32_t touched(const vkp_stream *s, const vkp_plan *p, const uint64_t *addresses, vkp_touch *out) {
    uint32_t n = 0;
    for (int writes = 0; writes < 2; writes++)
        for (uint32_t i = 0; i < p->bindings; i++) {
            const vkp_binding *b = &p->binding[i];
            uint64_t start = addresses[2 * i + 1] - b->low;
            if (is_write(b->kind) == writes)
                out[n++] = (vkp_touch){(uintptr_t)s->queue->device, addresses[2 * i], start, start + b->used, b->kind};
        }
    return n;
}

/* Finds what a dispatch binds, all that can fail of it; where descriptors are not pushed, their set is one of `f`. */
static int32_t bind_buffers(vkp_stream *s, frame *f, const vkp_plan *p, const uint64_t *addresses,
                            buffer_info *buffers, uint64_t *set) {
    for (uint32_t i = 0; i < p->bindings; i++)
        buffers[i] = (buffer_info){addresses[2 * i], addresses[2 * i + 1] - p->binding[i].back, p->binding[i].nbytes};
    if (p->pushes || !p->bindings) return SUCCESS;
    int32_t result = allocate_set(s, f, p->set_layout, set);
    if (result != SUCCESS) return result;
    write_info write = {S_WRITE, NULL, *set, 0, 0, p->bindings, STORAGE_BUFFER, NULL, buffers, NULL};
    s->vk.write_sets(s->queue->device, 1, &write, 0, NULL);
    return SUCCESS;
}

#endif
