/* Queues without a device: what is submitted to them are errands, which a thread of Python's takes here once what they
 * wait for has come, and of which it says when they are done. To the pump they are queues like others: Vulkan's functions
 * are those below, a semaphore is the address of a counter, and a command buffer the number of an errand. Each queue's
 * errands end in order. A hub has all such queues of one communicator, under one lock.
 */
#ifndef VKPAR_PUMP_HUB_H
#define VKPAR_PUMP_HUB_H

#include "_pump_bridge.h"
#include "_pump_types.h"

typedef struct { uint64_t after, value, number; } errand;

typedef struct hub_queue {
    vkp_hub *hub;
    waiter *told;                        /* who delivers what its timeline allows; NULL: nobody yet, or no more */
    uint64_t done;                       /* its timeline */
    uint64_t released;                   /* what the bridge signals; an errand is ready at its `after` */
    uint64_t last;                       /* the value of the last errand */
    uint64_t awaited;                    /* the least value that a thread sleeps for; 0: none does */
    errand *errands;                     /* ring: errands[head % capacity] .. errands[tail % capacity] were not taken */
    uint64_t head, tail, capacity;
} hub_queue;

struct vkp_hub {
    pthread_mutex_t lock, telling;       /* the latter, before a group's lock: the group may go when it is free */
    pthread_cond_t moved, wake;          /* a timeline has moved; an errand is ready */
    uint32_t n;
    int halted, emptied, stopped;        /* no errand is taken any more; all are done, and what follows; nobody rests */
    hub_queue queues[];
};

static void until(struct timespec *at, uint64_t ns) {
    clock_gettime(CLOCK_MONOTONIC, at);
    uint64_t sum = (uint64_t)at->tv_nsec + ns % 1000000000ull;
    at->tv_sec += (time_t)(ns / 1000000000ull + sum / 1000000000ull);
    at->tv_nsec = (long)(sum % 1000000000ull);
}

static int hub_room(hub_queue *q, uint64_t count) {
    uint64_t capacity = q->capacity ? q->capacity : 64;
    while (capacity - (q->tail - q->head) < count) capacity *= 2;
    if (capacity == q->capacity) return 1;
    errand *errands = malloc(capacity * sizeof *errands);
    if (!errands) return 0;
    for (uint64_t i = q->head; i < q->tail; i++) errands[i % capacity] = q->errands[i % q->capacity];
    free(q->errands);
    q->errands = errands;
    q->capacity = capacity;
    return 1;
}

/* Has a group told of the moves of its queue `rank`, until hub_part. */
void vkp_hub_tell(vkp_hub *hub, uint32_t queue, vkp_group *g, uint32_t rank) {
    g->waiters[rank].teller = &hub->queues[queue];
    hub->queues[queue].told = &g->waiters[rank];
}

static void hub_part(hub_queue *q) {
    pthread_mutex_lock(&q->hub->telling);
    q->told = NULL;
    pthread_mutex_unlock(&q->hub->telling);
}

static int hub_ready(const hub_queue *q) {
    return q->head < q->tail && q->errands[q->head % q->capacity].after <= q->released;
}

/* vkQueueSubmit: of all that a submission may wait for, only the queue's own host-signalled timeline is ever given. */
static int32_t hub_submit(void *queue, uint32_t count, const submit_info *infos, uint64_t fence) {
    hub_queue *q = queue;
    vkp_hub *hub = q->hub;
    (void)fence;
    pthread_mutex_lock(&hub->lock);
    int fits = hub_room(q, count);
    for (uint32_t i = 0; fits && i < count; i++) {
        const timeline_info *timeline = infos[i].next;
        uint64_t after = infos[i].wait_count ? timeline->wait_values[0] : 0, value = timeline->signal_values[0];
        q->errands[q->tail++ % q->capacity] = (errand){after, value, (uint64_t)(uintptr_t)infos[i].commands[0]};
        q->last = value;
        if (hub->emptied) __atomic_store_n(&q->done, value, __ATOMIC_RELEASE);
    }
    if (hub_ready(q)) pthread_cond_broadcast(&hub->wake);
    pthread_mutex_unlock(&hub->lock);
    return fits ? SUCCESS : OUT_OF_HOST_MEMORY;
}

/* vkGetSemaphoreCounterValue. */
static int32_t hub_counter(void *queue, uint64_t semaphore, uint64_t *value) {
    (void)queue;
    *value = __atomic_load_n((uint64_t *)(uintptr_t)semaphore, __ATOMIC_ACQUIRE);
    return SUCCESS;
}

/* vkWaitSemaphores for one semaphore. */
static int32_t hub_wait(void *queue, const wait_info *info, uint64_t timeout) {
    hub_queue *q = queue;
    vkp_hub *hub = q->hub;
    const uint64_t *word = (const uint64_t *)(uintptr_t)info->semaphores[0];
    struct timespec end;
    int late = 0;
    until(&end, timeout);
    pthread_mutex_lock(&hub->lock);
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < info->values[0] && !late) {
        if (!q->awaited || info->values[0] < q->awaited) q->awaited = info->values[0];
        late = pthread_cond_timedwait(&hub->moved, &hub->lock, &end) != 0;
    }
    int reached = __atomic_load_n(word, __ATOMIC_ACQUIRE) >= info->values[0];
    pthread_mutex_unlock(&hub->lock);
    return reached ? SUCCESS : TIMEOUT;
}

/* vkSignalSemaphore. */
static int32_t hub_signal(void *queue, const signal_info *info) {
    vkp_hub *hub = ((hub_queue *)queue)->hub;
    pthread_mutex_lock(&hub->lock);
    __atomic_store_n((uint64_t *)(uintptr_t)info->semaphore, info->value, __ATOMIC_RELEASE);
    if (hub_ready(queue)) pthread_cond_broadcast(&hub->wake);
    pthread_mutex_unlock(&hub->lock);
    return SUCCESS;
}

vkp_hub *vkp_hub_new(uint32_t n) {
    vkp_hub *hub = calloc(1, sizeof *hub + n * sizeof *hub->queues);
    if (!hub) return NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&hub->lock, NULL);
    pthread_mutex_init(&hub->telling, NULL);
    pthread_cond_init(&hub->moved, &monotonic);
    pthread_cond_init(&hub->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    hub->n = n;
    for (uint32_t i = 0; i < n; i++) hub->queues[i].hub = hub;
    return hub;
}

/* The addresses of a queue, its timeline, what the bridge signals, and of the functions: submit, wait, signal, counter. */
void vkp_hub_addresses(vkp_hub *hub, uint32_t queue, uint64_t *out) {
    hub_queue *q = &hub->queues[queue];
    const uint64_t found[] = {
        (uint64_t)(uintptr_t)q, (uint64_t)(uintptr_t)&q->done, (uint64_t)(uintptr_t)&q->released,
        (uint64_t)(uintptr_t)hub_submit, (uint64_t)(uintptr_t)hub_wait, (uint64_t)(uintptr_t)hub_signal,
        (uint64_t)(uintptr_t)hub_counter};
    memcpy(out, found, sizeof found);
}

/* Takes ready errands, at most `most`: the queue, the number and the value of each. */
uint32_t vkp_hub_take(vkp_hub *hub, uint64_t *out, uint32_t most) {
    uint32_t count = 0;
    pthread_mutex_lock(&hub->lock);
    for (uint32_t i = 0; i < hub->n && !hub->halted; i++) {
        hub_queue *q = &hub->queues[i];
        for (; count < most && hub_ready(q); count++) {
            errand item = q->errands[q->head++ % q->capacity];
            out[3 * count] = i;
            out[3 * count + 1] = item.number;
            out[3 * count + 2] = item.value;
        }
    }
    pthread_mutex_unlock(&hub->lock);
    return count;
}

/* Says that a queue's errands up to `value` are done. */
void vkp_hub_done(vkp_hub *hub, uint32_t queue, uint64_t value) {
    hub_queue *q = &hub->queues[queue];
    pthread_mutex_lock(&hub->lock);
    if (!hub->halted) __atomic_store_n(&q->done, value, __ATOMIC_RELEASE);
    if (q->awaited && q->awaited <= value) {
        q->awaited = 0;                  /* who sleeps for a later value says so again */
        pthread_cond_broadcast(&hub->moved);
    }
    pthread_mutex_unlock(&hub->lock);
    pthread_mutex_lock(&hub->telling);
    waiter *told = q->told;
    if (told) {
        lock_group(told->group);
        deliver_told(told);
        pthread_mutex_unlock(&told->group->lock);
    }
    pthread_mutex_unlock(&hub->telling);
}

/* Lets other threads run. A sleep of no length takes Linux 70 us: the slack of a thread's timers, and a wake-up. */
void vkp_yield(void) { sched_yield(); }

/* Sleeps until an errand is ready, at most so long, or until the hub is stopped; a halted one has no errand ready. */
void vkp_hub_rest(vkp_hub *hub, uint64_t timeout_ns) {
    struct timespec end;
    int ready = 0, late = 0;
    if (!timeout_ns) {
        sched_yield();
        return;
    }
    until(&end, timeout_ns);
    pthread_mutex_lock(&hub->lock);
    while (!late && !hub->stopped) {
        for (uint32_t i = 0; i < hub->n && !ready && !hub->halted; i++) ready = hub_ready(&hub->queues[i]);
        if (ready) break;
        late = pthread_cond_timedwait(&hub->wake, &hub->lock, &end) != 0;
    }
    pthread_mutex_unlock(&hub->lock);
}

/* From now on no errand is taken, and none ends. */
void vkp_hub_halt(vkp_hub *hub) {
    pthread_mutex_lock(&hub->lock);
    hub->halted = 1;
    pthread_cond_broadcast(&hub->wake);
    pthread_mutex_unlock(&hub->lock);
}

/* Halts, and lets nobody rest from now on. */
void vkp_hub_stop(vkp_hub *hub) {
    pthread_mutex_lock(&hub->lock);
    hub->halted = hub->stopped = 1;
    pthread_cond_broadcast(&hub->wake);
    pthread_mutex_unlock(&hub->lock);
}

/* Counts all errands as done, those that will yet be given too: after an abort, which has taken what they carry for lost. */
void vkp_hub_empty(vkp_hub *hub) {
    pthread_mutex_lock(&hub->lock);
    hub->halted = hub->emptied = 1;
    for (uint32_t i = 0; i < hub->n; i++) __atomic_store_n(&hub->queues[i].done, hub->queues[i].last, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&hub->moved);
    pthread_cond_broadcast(&hub->wake);
    pthread_mutex_unlock(&hub->lock);
}

void vkp_hub_free(vkp_hub *hub) {
    for (uint32_t i = 0; i < hub->n; i++) free(hub->queues[i].errands);
    pthread_cond_destroy(&hub->moved);
    pthread_cond_destroy(&hub->wake);
    pthread_mutex_destroy(&hub->lock);
    pthread_mutex_destroy(&hub->telling);
    free(hub);
}

#endif
