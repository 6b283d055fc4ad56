/* The bridge: a thread per source queue waits on one timeline at a time and signals the destinations' own. */
#ifndef VKPAR_PUMP_BRIDGE_H
#define VKPAR_PUMP_BRIDGE_H

#include "_pump_types.h"

static void advance(vkp_group *g, uint32_t dst) {
    local *l = &g->locals[dst];
    uint64_t done = l->done;
    while (done < l->tail && l->missing[done % l->capacity] == 0) done++;
    if (done == l->done) return;
    signal_info info = {STYPE_SIGNAL, NULL, l->semaphore, done};
    int32_t result = g->queues[dst]->signal(g->queues[dst]->device, &info);
    if (result == SUCCESS) l->done = done;
    else if (g->error == SUCCESS) g->error = result;
}

static void record_latency(vkp_group *g, uint64_t ns) {
    uint32_t bucket = 0;
    while (ns > 1 && bucket < HISTOGRAM - 1) { ns >>= 1; bucket++; }
    g->histogram[bucket]++;
}

static void deliver(waiter *w, uint64_t counter, uint64_t seen) {
    vkp_group *g = w->group;
    while (w->head < w->tail && w->needs[w->head % w->capacity].value <= counter) {
        need item = w->needs[w->head++ % w->capacity];
        g->locals[item.dst].missing[item.entry % g->locals[item.dst].capacity]--;
        advance(g, item.dst);
        g->bridges++;
        record_latency(g, now_ns() - seen);
    }
}

static int32_t watch(waiter *w, uint64_t value, uint64_t *counter) {
    vkp_group *g = w->group;
    vkp_queue *q = g->queues[w->rank];
    uint64_t start = now_ns();
    int32_t result;
    do {
        result = q->counter(q->device, q->timeline, counter);
        if (result != SUCCESS) return result;
        if (*counter >= value) { __atomic_add_fetch(&g->spins, 1, __ATOMIC_RELAXED); return SUCCESS; }
    } while (now_ns() - start < g->spin_ns);
    __atomic_add_fetch(&g->blocks, 1, __ATOMIC_RELAXED);
    result = wait_one(q, value, SLICE_NS);
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
        pthread_mutex_lock(&g->lock);
        if (result == SUCCESS) deliver(w, counter, seen);
        else if (result != TIMEOUT && g->error == SUCCESS) g->error = result;
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static int grow_needs(waiter *w) {
    uint64_t capacity = w->capacity ? 2 * w->capacity : 256;
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

/* Parks dst's next batch until all sources are there; *value is what its local timeline will then say. */
static int32_t park(vkp_group *g, uint32_t dst, const uint32_t *sources, const uint64_t *values, uint32_t count,
                    uint64_t *value) {
    local *l = &g->locals[dst];
    int32_t result = SUCCESS;
    pthread_mutex_lock(&g->lock);
    if (l->tail - l->done == l->capacity && !grow_local(l)) { result = OUT_OF_HOST_MEMORY; goto end; }
    for (uint32_t i = 0; i < count; i++) {
        waiter *w = &g->waiters[sources[i]];
        if (w->tail - w->head == w->capacity && !grow_needs(w)) { result = OUT_OF_HOST_MEMORY; goto end; }
    }
    l->missing[l->tail % l->capacity] = count;
    for (uint32_t i = 0; i < count; i++) {
        waiter *w = &g->waiters[sources[i]];
        need item = {values[i], l->tail, dst};
        if (w->head == w->tail) pthread_cond_signal(&w->wake);
        w->needs[w->tail++ % w->capacity] = item;
    }
    *value = ++l->tail;
end:
    pthread_mutex_unlock(&g->lock);
    return result;
}

#endif
