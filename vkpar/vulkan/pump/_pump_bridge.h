/* The bridge: a thread per source queue waits on one timeline at a time, copies slots where source and destination
 * do not share memory, and signals the destinations' own timelines. A queue without a device has no such thread: whoever
 * moves its timeline does what the thread would, one wake-up earlier.
 */
#ifndef VKPAR_PUMP_BRIDGE_H
#define VKPAR_PUMP_BRIDGE_H

#include "_pump_ledger.h"
#include "_pump_types.h"

enum { LOOKS = 100, PAUSES = 4 };        /* before a thread sleeps for the group's lock: some 10 us */
enum { RETRIES = 100 };                  /* of a signal that an abort needs, a millisecond apart */

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void fail(vkp_group *g, int32_t result, uint32_t rank, int what) {
    if (g->error != SUCCESS) return;
    g->culprit = rank;
    g->failed = what;
    __atomic_store_n(&g->error, result, __ATOMIC_RELEASE);
}

/* Why nothing more may be enqueued; SUCCESS where it may. */
static int32_t refusal(vkp_group *g) { return g->error != SUCCESS ? g->error : g->aborted ? UNKNOWN : SUCCESS; }

/* Takes the group's lock, which others hold for less than a microsecond: in a virtual machine a thread that sleeps for it
 * wakes 20 to 200 us later, and whoever wakes it spends up to 70. */
static void lock_group(vkp_group *g) {
    for (int i = 0; i < LOOKS; i++) {
        if (!pthread_mutex_trylock(&g->lock)) return;
        for (int j = 0; j < PAUSES; j++) pause_briefly();
    }
    pthread_mutex_lock(&g->lock);
}

/* Signals dst's entries that have all they wait for, oldest first, and returns how many these are. Each gets its own
 * signal: validation layers before 1.3.296 stall for 10 s on a wait for a value that a greater one has skipped.
 *
 * A signal takes some drivers 10 us, so the lock is not held meanwhile. One thread at a time signals to dst: what others
 * find ready then is left to it, or, after an abort, to the one that aborts. */
static uint64_t advance(vkp_group *g, uint32_t dst, int aborts) {
    local *l = &g->locals[dst];
    uint64_t made = 0;
    if (l->signals) return 0;
    l->signals = 1;
    while (l->done < l->tail && l->missing[l->done % l->capacity] == 0 && aborts == g->aborted) {
        signal_info info = {STYPE_SIGNAL, NULL, l->semaphore, l->done + 1};
        pthread_mutex_unlock(&g->lock);
        int32_t result = g->queues[dst]->signal(g->queues[dst]->device, &info);
        lock_group(g);
        if (result != SUCCESS) { fail(g, result, dst, SIGNAL_FAILED); break; }
        l->done++;
        made++;
    }
    l->signals = 0;
    return made;
}

/* Lets every parked batch run, now and for good: park and enqueue refuse from here on. A signal that fails is tried again
 * for a while, as nothing else ends what waits for it. */
static void release(vkp_group *g) {
    static const struct timespec nap = {0, 1000000};
    note_reached(g);
    g->aborted = 1;
    for (uint32_t r = 0; r < g->n; r++) {
        local *l = &g->locals[r];
        for (uint64_t i = l->done; i < l->tail; i++) l->missing[i % l->capacity] = 0;
        g->waiters[r].head = g->waiters[r].tail;
    }
    for (uint32_t r = 0; r < g->n; r++) {
        while (g->locals[r].signals) {   /* another thread is at its last one */
            pthread_mutex_unlock(&g->lock);
            sched_yield();
            lock_group(g);
        }
        advance(g, r, 1);
        for (int i = 0; i < RETRIES && g->locals[r].done < g->locals[r].tail; i++) {
            pthread_mutex_unlock(&g->lock);
            nanosleep(&nap, NULL);
            lock_group(g);
            advance(g, r, 1);
        }
    }
}

static uint32_t bucket(uint64_t ns) {
    if (ns < 4) return (uint32_t)ns;
    uint32_t power = 63 - (uint32_t)__builtin_clzll(ns), index = 4 * (power - 1) + (ns >> (power - 2) & 3);
    return index < HISTOGRAM ? index : HISTOGRAM - 1;
}

static char *slot_of(vkp_group *g, uint32_t rank, uint32_t slot) {
    return (char *)(uintptr_t)((g->mirror[rank] ? g->mirror[rank] : g->shared) + g->offset[slot]);
}

/* Copies a slot while others take the lock: it may be large. False where an abort came meanwhile.
 *
 * Nobody else touches the bytes. The batch that wrote them is done, and had itself waited for the slot's older writer
 * and all its readers, in whatever memory they had it: nobody uses the target any more. This content's readers are
 * parked until the copy is done, and the next writer waits for them. Copies of one content are all among its writer's
 * needs, so one thread makes them, in order.
 */
static int copy_slot(vkp_group *g, need item) {
    pthread_mutex_unlock(&g->lock);
    memcpy(slot_of(g, item.dst, item.slot), slot_of(g, item.src, item.slot), g->size[item.slot]);
    lock_group(g);
    g->copies++;
    g->copied_bytes += g->size[item.slot];
    return !g->aborted;
}

/* Delivers what the counter allows. What is parked meanwhile is left to the next look: its latency begins there. */
static void deliver(waiter *w, uint64_t counter, uint64_t seen) {
    vkp_group *g = w->group;
    for (uint64_t tail = w->tail; w->head < tail && !g->stop && g->error == SUCCESS;) {
        need item = w->needs[w->head % w->capacity];
        if (item.value > counter) return;
        if (item.slot != NO_SLOT && !copy_slot(g, item)) return; /* the abort has taken the item back */
        w->head++;
        g->locals[item.dst].missing[item.entry % g->locals[item.dst].capacity]--;
        uint64_t entries = advance(g, item.dst, 0);
        g->bridges += entries;
        g->histogram[bucket(now_ns() - seen)] += entries;
    }
}

/* Delivers what the timeline of a queue allows that tells itself. One thread at a time does: what another one finds moved
 * meanwhile is left to it. */
static void deliver_told(waiter *w) {
    vkp_queue *q = w->group->queues[w->rank];
    w->moved = 1;
    if (w->delivers) return;
    w->delivers = 1;
    while (w->moved) {
        uint64_t counter = 0;
        w->moved = 0;
        if (q->counter(q->device, q->timeline, &counter) == SUCCESS) deliver(w, counter, now_ns());
    }
    w->delivers = 0;
}

static int32_t watch(waiter *w, uint64_t value, uint64_t *counter) {
    vkp_group *g = w->group;
    vkp_queue *q = g->queues[w->rank];
    uint64_t start = now_ns();
    int32_t result;
    do {
        result = q->counter(q->device, q->timeline, counter);
        if (result != SUCCESS) return result;
        if (*counter > q->seen) q->seen = *counter;
        if (*counter >= value) { __atomic_add_fetch(&g->spins, 1, __ATOMIC_RELAXED); return SUCCESS; }
    } while (now_ns() - start < g->spin_ns);
    __atomic_add_fetch(&g->blocks, 1, __ATOMIC_RELAXED);
    result = wait_one(q, value, g->slice_ns);
    return result == SUCCESS ? q->counter(q->device, q->timeline, counter) : result;
}

static void *bridge(void *argument) {
    waiter *w = argument;
    vkp_group *g = w->group;
    pthread_mutex_lock(&g->lock);
    while (!g->stop) {
        if (w->head == w->tail || g->error != SUCCESS) { pthread_cond_wait(&w->wake, &g->lock); continue; }
        uint64_t counter = 0, value = w->needs[w->head % w->capacity].value;
        pthread_mutex_unlock(&g->lock);
        int32_t result = watch(w, value, &counter);
        uint64_t seen = now_ns();
        lock_group(g);
        if (result == SUCCESS) deliver(w, counter, seen);
        else if (result != TIMEOUT) fail(g, result, w->rank, WAIT_FAILED);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static int make_room(waiter *w, uint64_t count) {
    uint64_t capacity = w->capacity ? w->capacity : 256;
    while (capacity - (w->tail - w->head) < count) capacity *= 2;
    if (capacity == w->capacity) return 1;
    need *needs = malloc(capacity * sizeof *needs);
    if (!needs) return 0;
    for (uint64_t i = w->head; i < w->tail; i++) needs[i % capacity] = w->needs[i % w->capacity];
    free(w->needs);
    w->needs = needs;
    w->capacity = capacity;
    return 1;
}

static int grow_local(local *l) {
    uint64_t capacity = l->capacity ? 2 * l->capacity : 256;
    uint32_t *missing = malloc(capacity * sizeof *missing);
    if (!missing) return 0;
    for (uint64_t i = l->done; i < l->tail; i++) missing[i % capacity] = l->missing[i % l->capacity];
    free(l->missing);
    l->missing = missing;
    l->capacity = capacity;
    return 1;
}

/* Parks dst's next batch until all needs are met; *value is what its local timeline will then say. */
static int32_t park(vkp_group *g, uint32_t dst, const need *needs, uint32_t count, uint64_t *value) {
    local *l = &g->locals[dst];
    lock_group(g);
    int32_t result = refusal(g);
    if (result == SUCCESS && l->tail - l->done == l->capacity && !grow_local(l)) result = OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; i < count && result == SUCCESS; i++)
        if (!make_room(&g->waiters[needs[i].src], count)) result = OUT_OF_HOST_MEMORY;
    if (result == SUCCESS) {
        l->missing[l->tail % l->capacity] = count;
        for (uint32_t i = 0; i < count; i++) {
            waiter *w = &g->waiters[needs[i].src];
            need *item = &w->needs[w->tail % w->capacity];
            *item = needs[i];
            item->entry = l->tail;
            if (w->head == w->tail++ && !w->teller) pthread_cond_signal(&w->wake);
        }
        *value = ++l->tail;
        for (uint32_t i = 0; i < count; i++)
            if (g->waiters[needs[i].src].teller) deliver_told(&g->waiters[needs[i].src]); /* it may have moved before */
    }
    pthread_mutex_unlock(&g->lock);
    return result;
}

#endif
