/* Eager launching: a stream gathers a device's operations in an open command buffer of its compute queue.
 *
 * The open buffer is submitted when the device has run dry or is about to, when enough has gathered, and before anything
 * that needs it, programs in the same call: other submissions to the queue or its sibling, and waits for its value. Its
 * value counts as the queue's last one from the first operation in it on. Every entry holds the lock `entry`; a thread
 * submits what nobody comes back to. Where a submit fails, the buffer stays as it is: the next call tries again, and says
 * so before it appends anything. While a thread captures, what it asks of the stream is refused: the caller keeps it for
 * a graph.
 */
#ifndef VKPAR_PUMP_LAUNCH_H
#define VKPAR_PUMP_LAUNCH_H

#include "_pump_frames.h"

enum { ENOUGH = 64, MOST = 1024 };       /* operations: worth a submission; that a buffer takes where none is free */
/* Estimates: what keeps a device busy for a while; what a driver's watchdog minds on none; what is not held back. */
static const uint64_t ENOUGH_NS = 1000000, MOST_NS = 16000000, LONG_NS = 50000;
static const uint64_t LOOK_NS = 1000, TICK_NS = 200000;
/* Between submissions to a device that is faster than its caller: so much at least, up to so much where that many times a
 * submission's own time is more, since each is the caller's time. */
static const uint64_t APART_NS = 30000, MOST_APART_NS = 120000, APART_TIMES = 10;
static const uint32_t IDLE_TICKS = 50;

/* ---- the open buffer's life ---- */

static int is_behind(vkp_queue *q);

/* Takes note of a submission's time: an average, which one that was interrupted moves but little. */
static void set_apart(vkp_stream *s, uint64_t took) {
    uint64_t apart = took * APART_TIMES;
    if (apart > MOST_APART_NS) apart = MOST_APART_NS;
    s->apart = (7 * s->apart + (apart > APART_NS ? apart : APART_NS)) / 8;
}

/* Ends it; it is to be submitted next. *ended: there is one. */
static int32_t seal(vkp_stream *s, int *ended) {
    *ended = 0;
    if (!s) return SUCCESS;
    if (!s->count) return s->broken;
    if (s->shut || forked) return SUCCESS;
    if (s->broken) return s->broken;
    if (!s->sealed) {
        int32_t result = noted(s, CALL(end), s->vk.end(s->open->commands));
        if (result != SUCCESS) return s->broken = result;
        s->sealed = 1;
    }
    *ended = 1;
    return SUCCESS;
}

/* Takes note that what was sealed was submitted, by a call that began then. */
static void note_sent(vkp_stream *s, uint64_t value, uint64_t begun) {
    s->sent = now_ns();
    if (s->trace && s->trace->sent_used < s->trace->sent_room)
        s->trace->sent[s->trace->sent_used++] = (vkp_sent){begun, s->sent, s->count};
    s->open->value = value;
    s->open = NULL;
    s->count = s->stamped = 0;
    s->sealed = 0;
    s->pending++;
    s->submissions++;
}

/* What comes before that the queues of a device are to be given. */
static int32_t settle_device(vkp_queue *q) {
    int32_t result = settle(q);
    return result == SUCCESS ? settle(q->sibling) : result;
}

/* Submits it, behind what comes before. On an error it stays: nothing in it is lost, and whoever comes next tries again. */
static int32_t flush(vkp_stream *s) {
    int ended;
    int32_t result = s ? settle_device(s->queue) : SUCCESS;
    if (result == SUCCESS) result = seal(s, &ended);
    if (result != SUCCESS || !ended) return result;
    uint64_t value = s->queue->last, begun = now_ns();
    result = noted(s, SUBMIT, submit_one(s->queue, s->open->commands, value));
    if (result != SUCCESS) return result;
    note_sent(s, value, begun);
    set_apart(s, s->sent - begun);
    return SUCCESS;
}

/* Takes note of how a call ended that also submitted what had been gathered for a queue, and was sealed. */
static void note_gathered(vkp_queue *q, const one_submission *gathered, uint64_t begun, int32_t result) {
    if (noted(q->stream, SUBMIT, result) == SUCCESS) note_sent(q->stream, gathered->value, begun);
}

/* What both queues of a device were given so far. */
static int32_t flush_device(vkp_queue *q) {
    int32_t result = settle_device(q);
    if (result == SUCCESS) result = flush(q->stream);
    return result == SUCCESS && q->sibling ? flush(q->sibling->stream) : result;
}

/* Gets the stream ready for one more operation, or says why it takes none; then nothing changed. */
static int32_t ready(vkp_stream *s) {
    if (forked) return FORKED;
    if (s->shut || s->refuses) return SHUT;
    if (s->captures && pthread_equal(s->capturer, pthread_self())) return CAPTURES;
    if (s->broken) return s->broken;
    if (s->sealed || s->count >= MOST) {
        int32_t result = flush(s);
        if (result != SUCCESS) return result;
    }
    return s->open ? SUCCESS : open_frame(s);
}

/* Says whether to submit what has gathered. The device is to find the next buffer when it is done with one, so that
 * long operations go two buffers ahead of it and the rest gathers; short ones go when it has nothing to do, but no more
 * often than a submission is worth to a caller that is slower than the device. */
static int is_time(vkp_stream *s, uint64_t now) {
    int dry = 0;
    if (now - s->looked >= LOOK_NS) {
        s->looked = now;
        dry = retire_frames(s);
    }
    if (s->pending >= FRAMES - 1) return 0; /* the last frame gathers on */
    if (s->count >= ENOUGH || s->cost_ns >= (s->pending < 2 ? ENOUGH_NS : MOST_NS)) return 1;
    return dry && (s->cost_ns >= LONG_NS || now - s->sent >= s->apart);
}

/* Counts one operation, and submits where it is time; a failure of that is the next call's. */
static void appended(vkp_stream *s, uint32_t name, uint64_t cost_ns) {
    vkp_queue *q = s->queue;
    if (!s->count++) {
        __atomic_store_n(&q->last, q->last + 1, __ATOMIC_RELEASE);
        s->looked = 0;
    }
    s->operations++;
    s->cost_ns += cost_ns;
    uint32_t known = 0;
    while (known < s->nnames && s->names[known] != name) known++;
    if (known == s->nnames && known < NAMES) s->names[s->nnames++] = name;
    if (is_time(s, now_ns())) flush(s);
    if (!s->count) return;
    if (s->parked) pthread_cond_signal(&s->wake);
}

/* A thread: submits what was gathered and nobody came back to, once the device has run dry or, long work, is about to. */
static void *attend(void *argument) {
    vkp_stream *s = argument;
    struct timespec tick = {0, (long)TICK_NS};
    uint32_t idle = 0;                   /* operations may have come before the thread */
    pthread_mutex_lock(&entry);
    while (!s->stop) {
        if (idle >= IDLE_TICKS) {
            s->parked = 1;
            pthread_cond_wait(&s->wake, &entry);
            s->parked = 0;
            idle = 0;
            continue;
        }
        pthread_mutex_unlock(&entry);
        nanosleep(&tick, NULL);
        pthread_mutex_lock(&entry);
        idle = s->count || s->queue->nheld ? 0 : idle + 1;
        int refused = s->queue->nheld && !is_behind(s->queue) && settle_held(s->queue) != SUCCESS;
        if (refused || (s->count && (s->sealed || s->broken))) idle = IDLE_TICKS; /* whoever calls next tries again */
        else if (s->count && (retire_frames(s) || (s->pending < 2 && s->cost_ns >= ENOUGH_NS))) flush(s);
    }
    pthread_mutex_unlock(&entry);
    return NULL;
}

static void register_fork(void) { pthread_atfork(NULL, NULL, note_fork); }

vkp_stream *vkp_stream_new(vkp_queue *q, uint32_t family, int barriers, uint32_t rate, uint64_t wait_idle,
                           const uint64_t *functions) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    vkp_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    pthread_once(&once, register_fork);
    memcpy(&s->vk, functions, sizeof s->vk);
    s->queue = q;
    s->family = family;
    s->rate = rate;
    s->apart = APART_NS;
    s->failed = SUBMIT;
    s->wait_idle = (idle_fn)(uintptr_t)wait_idle;
    s->to.vk = &s->vk;
    s->to.every = barriers;
    pthread_cond_init(&s->wake, NULL);
    s->running = pthread_create(&s->thread, NULL, attend, s) == 0;
    if (!s->running) {
        vkp_stream_free(s);
        return NULL;
    }
    pthread_mutex_lock(&entry);
    q->stream = s;
    s->number = count_stream(0);
    pthread_mutex_unlock(&entry);
    return s;
}

/* Has what the calling thread asks of it refused from now on, or ends that. */
void vkp_stream_capture(vkp_stream *s, int captures) {
    pthread_mutex_lock(&entry);
    s->captures = captures;
    s->capturer = pthread_self();
    pthread_mutex_unlock(&entry);
}

/* Takes no operations any more; what it has it still submits. */
void vkp_stream_refuse(vkp_stream *s) {
    pthread_mutex_lock(&entry);
    s->refuses = 1;
    pthread_mutex_unlock(&entry);
}

/* Ends it; nothing that it submitted may be pending, unless its buffers are to leak. What was never submitted goes. */
void vkp_stream_close(vkp_stream *s, int leak) {
    pthread_mutex_lock(&entry);
    int joins = s->running;
    s->running = 0;
    if (!s->shut && !forked && settle_held(s->queue) != SUCCESS) drop_held(UNKNOWN);
    if (s->count && !s->shut) __atomic_store_n(&s->queue->last, s->queue->submitted, __ATOMIC_RELEASE);
    if (!s->shut && s->queue->stream == s) s->queue->stream = NULL;
    if (!s->shut && s->number) count_stream(s->number);
    s->shut = s->stop = 1;
    s->count = 0;
    close_recordings(s, leak);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&entry);
    if (joins) pthread_join(s->thread, NULL);
    while (s->nframes && !leak) destroy_frame(s, &s->frames[--s->nframes]);
}

void vkp_stream_free(vkp_stream *s) {
    if (forked) return;                  /* its thread is not here */
    vkp_stream_close(s, 1);
    pthread_cond_destroy(&s->wake);
    free(s);
}

/* ---- entries ---- */

int32_t vkp_stream_flush(vkp_stream *s) {
    if (forked) return FORKED;
    pthread_mutex_lock(&entry);
    int32_t result = s->shut ? SHUT : flush(s);
    pthread_mutex_unlock(&entry);
    return result;
}

/* The value that the oldest pending buffer signals, 0 where none is pending. */
uint64_t vkp_stream_oldest(vkp_stream *s) {
    pthread_mutex_lock(&entry);
    uint64_t value = s->pending ? s->frames[s->head].value : 0;
    pthread_mutex_unlock(&entry);
    return value;
}

/* How many operations were not submitted though somebody tried, up to `most` of their names, whether they are lost, and
 * which function failed last. */
uint32_t vkp_stream_unsent(vkp_stream *s, uint32_t *names, uint32_t most, uint32_t *lost, uint32_t *failed) {
    pthread_mutex_lock(&entry);
    *lost = s->broken != SUCCESS;
    *failed = *lost ? CALL(end) : __atomic_load_n(&s->failed, __ATOMIC_RELAXED);
    uint32_t count = s->sealed || s->broken ? s->count : 0;
    for (uint32_t i = 0; i < most; i++) names[i] = count && i < s->nnames ? s->names[i] : UINT32_MAX;
    pthread_mutex_unlock(&entry);
    return count;
}

/* out: operations, submissions, barriers, buffers, descriptor pools, operations gathered now. */
void vkp_stream_stats(vkp_stream *s, uint64_t *out) {
    pthread_mutex_lock(&entry);
    out[0] = s->operations;
    out[1] = s->submissions;
    out[2] = s->to.barriers;
    out[3] = s->nframes;
    out[4] = 0;
    for (uint32_t i = 0; i < s->nframes; i++) out[4] += s->frames[i].ndescriptors;
    out[5] = s->count;
    pthread_mutex_unlock(&entry);
}

/* Says whether an operation may run that does this, and makes room to write it down. */
static int32_t admit(vkp_stream *s, const vkp_touch *touches, uint32_t n, int asks) {
    int32_t result = ready(s);
    if (result == SUCCESS || (result == CAPTURES && asks)) {
        int32_t objected = objection(touches, n, asks);
        if (objected != SUCCESS) result = objected;
    }
    return result == SUCCESS && !expect(n) ? OUT_OF_HOST_MEMORY : result;
}

/* Begins and ends an operation in the trace, whose timestamps stand around its commands; NONE where there is no room for
 * it, or timestamps cost more than a trace may: a part of the time that passes, and what was put by, of which there is
 * no more than SPARE of them but for the begin of a trace. */
enum { NONE = -1, ALL_COMMANDS = 0x10000, PART = 32, SPARE = 64 };
typedef void (*stamp_fn)(void *, uint32_t, uint64_t, uint32_t);

static uint32_t write_stamp(vkp_stream *s) {
    ((stamp_fn)(uintptr_t)s->trace->write)(s->open->commands, ALL_COMMANDS, s->trace->pool, s->trace->queries);
    return s->trace->queries++;
}

static int affords(vkp_trace *t, uint64_t now, uint64_t cost) {
    uint64_t most = SPARE * t->price;
    if (t->purse < most) {
        t->purse += (now - t->looked) / PART;
        if (t->purse > most) t->purse = most;
    }
    t->looked = now;
    if (t->purse < cost) return 0;
    t->purse -= cost;
    return 1;
}

static int64_t begin_stamp(vkp_stream *s, uint32_t name) {
    vkp_trace *t = s->trace;
    if (!t) return NONE;
    if (t->used == t->room) {
        t->dropped++;
        return NONE;
    }
    int follows = s->stamped && s->stamped == s->count;
    vkp_stamp *row = &t->stamps[t->used++];
    *row = (vkp_stamp){now_ns(), name, UINT32_MAX, UINT32_MAX};
    if (!affords(t, row->at, follows ? t->price : 2 * t->price)) return NONE;
    row->begin = row->end = follows ? row[-1].end : write_stamp(s);
    return t->used - 1;
}

static void end_stamp(vkp_stream *s, int64_t row) {
    if (row == NONE) return;
    s->trace->stamps[row].end = write_stamp(s);
    s->stamped = s->count + 1;
}

/* Traces from now on, or no more (NULL). What was traced and not submitted yet is submitted before that ends. */
void vkp_stream_trace(vkp_stream *s, vkp_trace *trace) {
    pthread_mutex_lock(&entry);
    if (!trace && !s->shut && !forked) flush(s);
    s->trace = trace;
    s->stamped = 0;
    pthread_mutex_unlock(&entry);
}

static int32_t launch(vkp_stream *s, const vkp_plan *p, const uint64_t *addresses, const void *push) {
    vkp_touch touches[p->bindings ? p->bindings : 1];
    buffer_info buffers[p->bindings ? p->bindings : 1];
    uint64_t set = 0;
    uint32_t n = is_watched() ? touched(s, p, addresses, touches) : 0;
    int32_t result = admit(s, touches, n, p->asks);
    if (result == SUCCESS) result = bind_buffers(s, s->open, p, addresses, buffers, &set);
    if (result != SUCCESS) return result;
    int64_t row = begin_stamp(s, p->name);
    record_dispatch(&s->to, p, buffers, set, push ? push : p->push);
    end_stamp(s, row);
    write_down(touches, n, 0);
    appended(s, p->name, p->cost_ns);
    return SUCCESS;
}

/* Appends a dispatch. addresses: of each binding the buffer and the byte in it that `back` counts from, 64 bits each;
 * push: the push constants, NULL for the plan's own. */
int32_t vkp_launch(vkp_stream *s, const vkp_plan *p, const char *addresses, const char *push) {
    uint64_t copied[p->bindings ? 2 * p->bindings : 1];
    if (forked) return FORKED;
    memcpy(copied, addresses, p->bindings * 2 * sizeof *copied);
    pthread_mutex_lock(&entry);
    int32_t result = launch(s, p, copied, push);
    pthread_mutex_unlock(&entry);
    return result;
}

static uint64_t cost_of(const vkp_stream *s, uint64_t nbytes) { return 1000 + nbytes / s->rate; }

/* Appends copies. parts: source buffer, offset, target buffer, offset, bytes. */
int32_t vkp_copy(vkp_stream *s, uint32_t name, uint32_t n, const char *parts) {
    if (forked) return FORKED;
    copy_part *copied = malloc(n * (sizeof *copied + 2 * sizeof(vkp_touch)) + 1);
    if (!copied) return OUT_OF_HOST_MEMORY;
    memcpy(copied, parts, n * sizeof *copied);
    vkp_touch *touches = (vkp_touch *)(copied + n);
    uint64_t nbytes = 0, device = (uintptr_t)s->queue->device;
    for (uint32_t i = 0; i < n; i++) {
        const copy_part *c = &copied[i];
        nbytes += c->nbytes;
        touches[i] = (vkp_touch){device, c->from, c->start, c->start + c->nbytes, READS_IT};
        touches[n + i] = (vkp_touch){device, c->to, c->at, c->at + c->nbytes, REPLACES};
    }
    pthread_mutex_lock(&entry);
    int32_t result = admit(s, touches, 2 * n, 0);
    if (result == SUCCESS) {
        int64_t row = begin_stamp(s, name);
        record_copies(&s->to, copied, n);
        end_stamp(s, row);
        write_down(touches, 2 * n, 0);
        appended(s, name, cost_of(s, nbytes));
    }
    pthread_mutex_unlock(&entry);
    free(copied);
    return result;
}

/* Appends fills with a 32-bit word. parts: buffer, offset, bytes. */
int32_t vkp_fill(vkp_stream *s, uint32_t name, uint32_t n, const char *parts, uint32_t word) {
    if (forked) return FORKED;
    fill_part *copied = malloc(n * (sizeof *copied + sizeof(vkp_touch)) + 1);
    if (!copied) return OUT_OF_HOST_MEMORY;
    memcpy(copied, parts, n * sizeof *copied);
    vkp_touch *touches = (vkp_touch *)(copied + n);
    uint64_t nbytes = 0, device = (uintptr_t)s->queue->device;
    for (uint32_t i = 0; i < n; i++) {
        const fill_part *f = &copied[i];
        nbytes += f->nbytes;
        touches[i] = (vkp_touch){device, f->to, f->at, f->at + f->nbytes, REPLACES};
    }
    pthread_mutex_lock(&entry);
    int32_t result = admit(s, touches, n, 0);
    if (result == SUCCESS) {
        int64_t row = begin_stamp(s, name);
        for (uint32_t i = 0; i < n; i++) record_fill(&s->to, &copied[i], word);
        end_stamp(s, row);
        write_down(touches, n, 0);
        appended(s, name, cost_of(s, nbytes));
    }
    pthread_mutex_unlock(&entry);
    free(copied);
    return result;
}

/* Waits until the queue is idle, with no submission meanwhile: the function is vkQueueWaitIdle. */
int32_t vkp_queue_idle(vkp_queue *q, uint64_t wait_idle) {
    pthread_mutex_lock(&entry);
    int32_t result = settle(q);
    if (result == SUCCESS) result = ((idle_fn)(uintptr_t)wait_idle)(q->queue);
    pthread_mutex_unlock(&entry);
    return result;
}

#endif
