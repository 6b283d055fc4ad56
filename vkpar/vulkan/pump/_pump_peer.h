/* Roads between cards that a vendor's copy engines serve: some streams, its lanes, for each ordered pair of ranks.
 *
 * A transfer on a lane waits in the stream until the sender's kernel has raised the sender's word, copies pieces of slots
 * from the sender's memory to the same place in the receiver's, and then raises the receiver's word, for which a kernel
 * of the receiver's waits. No host thread takes part. Words count the transfers of a lane from the beginning,
 * modulo 2^32.
 */
#ifndef VKPAR_PUMP_PEER_H
#define VKPAR_PUMP_PEER_H

#include "_pump_bridge.h"
#include "_pump_types.h"

enum {
    REACHES = 0,                         /* a wait for a word that is as far, modulo 2^32, or farther */
    FEW = 8,                             /* transfers that are given at once */
};

void vkp_group_vendor(vkp_group *g, const uint64_t *functions) {
    g->vendor.push = (push_fn)(uintptr_t)functions[0];
    g->vendor.pop = (pop_fn)(uintptr_t)functions[1];
    g->vendor.wait = (word_fn)(uintptr_t)functions[2];
    g->vendor.copy = (copy_fn)(uintptr_t)functions[3];
    g->vendor.write = (word_fn)(uintptr_t)functions[4];
}

static vkp_road *road_of(vkp_group *g, uint32_t src, uint32_t dst, uint32_t lane) {
    return &g->roads[(src * g->n + dst) * LANES + lane];
}

/* Makes a lane of a road. False: out of memory. */
int vkp_group_road(vkp_group *g, uint32_t src, uint32_t dst, uint32_t lane, const vkp_road *given) {
    if (!g->roads) g->roads = calloc((size_t)g->n * g->n * LANES, sizeof *g->roads);
    if (!g->roads) return 0;
    *road_of(g, src, dst, lane) = *given;
    return 1;
}

/* How many transfers the lane was given so far. */
uint32_t vkp_group_sent(vkp_group *g, uint32_t src, uint32_t dst, uint32_t lane) { return road_of(g, src, dst, lane)->sent; }

/* Says what a program's transfers are, in the order in which they are given to the streams, and with which batches its
 * rounds open. Returns a VkResult. */
int32_t vkp_program_transfers(vkp_program *p, const uint8_t *opens, uint32_t n, const vkp_transfer *transfers,
                              uint32_t npieces, const vkp_piece *pieces) {
    uint32_t nreads = p->read_start[p->nbatches];
    p->opens = malloc(p->nbatches + 1);
    p->late = malloc((nreads + 1) * sizeof *p->late);
    if (!p->opens || !p->late) return OUT_OF_HOST_MEMORY;
    memcpy(p->opens, opens, p->nbatches);
    p->transfers = malloc((n + 1) * sizeof *transfers);
    p->pieces = malloc((npieces + 1) * sizeof *pieces);
    if (!p->transfers || !p->pieces) return OUT_OF_HOST_MEMORY;
    memcpy(p->transfers, transfers, n * sizeof *transfers);
    memcpy(p->pieces, pieces, npieces * sizeof *pieces);
    p->ntransfers = n;
    return SUCCESS;
}

/* Notes what the batches of the last round read: within a round, batches read what later ones of it fill. Whoever reads has
 * waited for what the writer sent, before which the writer's earlier batches were done. */
static void note_late(vkp_program *p) {
    vkp_group *g = p->group;
    for (uint32_t i = 0; i < p->nlate; i++) {
        const late_read *item = &p->late[i];
        g->read[item->slot * g->n + item->rank] = item->value;
        uint64_t *waited = &g->waited[item->rank * g->n + g->writer[item->slot]];
        if (g->written[item->slot] > *waited + 1) *waited = g->written[item->slot] - 1;
    }
    p->nlate = 0;
}

/* Gives a transfer to its stream; *call says what failed. */
static int32_t carry_one(vkp_program *p, const vkp_transfer *t, vkp_road *road, int *call) {
    const vendor *v = &p->group->vendor;
    void *stream = (void *)(uintptr_t)road->stream;
    *call = STREAM_WAIT;
    int32_t status = v->wait(stream, road->raised, ++road->sent, REACHES);
    for (uint32_t i = 0; i < t->npieces && !status; i++) {
        const vkp_piece *piece = &p->pieces[t->first + i];
        *call = STREAM_COPY;
        status = v->copy(road->to + piece->offset, road->from + piece->offset, piece->nbytes, stream);
    }
    if (status) return status;
    *call = STREAM_WRITE;
    return v->write(stream, road->arrived, road->sent, 0);
}

/* Gives all transfers of a program to their streams. A failure is the group's: kernels wait for what never comes. */
static int32_t carry(vkp_program *p, uint32_t *failed) {
    vkp_group *g = p->group;
    uint64_t context = 0;
    int32_t status = 0;
    int call = STREAM_WAIT;
    void *old;
    for (uint32_t i = 0; i < p->ntransfers && !status && !__atomic_load_n(&g->aborted, __ATOMIC_RELAXED); i++) {
        const vkp_transfer *t = &p->transfers[i];
        vkp_road *road = road_of(g, t->src, t->dst, t->lane);
        if (context && road->context != context) g->vendor.pop(&old);
        if (road->context != context) status = g->vendor.push((void *)(uintptr_t)road->context);
        context = status ? 0 : road->context;
        if (!status) status = carry_one(p, t, road, &call);
        if (status) *failed = t->src;
    }
    if (context) g->vendor.pop(&old);
    if (!status) return SUCCESS;
    lock_group(g);
    g->status = status;
    fail(g, UNKNOWN, *failed, call);
    pthread_mutex_unlock(&g->lock);
    return UNKNOWN;
}

/* ---- the group's thread, which gives transfers where they are many: each takes the caller some 7 us ---- */

static void *give(void *argument) {
    vkp_group *g = argument;
    carrier *c = &g->carrier;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->head == c->tail && !c->ends) pthread_cond_wait(&c->wake, &c->lock);
        if (c->head == c->tail) break;
        vkp_program *p = c->programs[c->head % c->capacity];
        uint32_t failed = 0;
        pthread_mutex_unlock(&c->lock);
        if (carry(p, &failed) != SUCCESS) {
            lock_group(g);
            release(g);
            pthread_mutex_unlock(&g->lock);
        }
        pthread_mutex_lock(&c->lock);
        c->head++;
        p->waiting--;
        pthread_cond_broadcast(&c->given);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Makes room for one more program, and has the thread run; false where it cannot. The caller holds the carrier's lock. */
static int takes_one(vkp_group *g) {
    carrier *c = &g->carrier;
    if (c->ends) return 0;
    if (c->tail - c->head == c->capacity) {
        uint64_t capacity = c->capacity ? 2 * c->capacity : 64;
        vkp_program **programs = malloc(capacity * sizeof *programs);
        if (!programs) return 0;
        for (uint64_t i = c->head; i < c->tail; i++) programs[i % capacity] = c->programs[i % c->capacity];
        free(c->programs);
        c->programs = programs;
        c->capacity = capacity;
    }
    if (!c->running) c->running = !pthread_create(&c->thread, NULL, give, g);
    return c->running;
}

/* Has all transfers of a program given to their streams, after those of the programs before. */
static int32_t carry_all(vkp_program *p, uint32_t *failed) {
    carrier *c = &p->group->carrier;
    pthread_mutex_lock(&c->lock);
    int busy = c->head != c->tail, handed = (busy || p->ntransfers > FEW) && takes_one(p->group);
    if (handed) {
        c->programs[c->tail++ % c->capacity] = p;
        p->waiting++;
        pthread_cond_signal(&c->wake);
    }
    while (busy && !handed && c->head != c->tail) pthread_cond_wait(&c->given, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return handed ? SUCCESS : carry(p, failed);
}

/* Waits until the thread has nothing of a program, which is to be freed. */
static void await_carrier(vkp_program *p) {
    carrier *c = &p->group->carrier;
    pthread_mutex_lock(&c->lock);
    while (p->waiting) pthread_cond_wait(&c->given, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

static void make_carrier(carrier *c) {
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, NULL);
    pthread_cond_init(&c->given, NULL);
}

/* Ends the thread. One that the vendor's library keeps is not waited for, nor is it before the group is freed. */
static void stop_carrier(carrier *c) {
    pthread_mutex_lock(&c->lock);
    c->ends = 1;
    int idle = c->running && c->head == c->tail;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    if (!idle) return;
    pthread_join(c->thread, NULL);
    c->running = 0;
}

static void free_carrier(carrier *c) {
    if (c->running) pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->wake);
    pthread_cond_destroy(&c->given);
    pthread_mutex_destroy(&c->lock);
    free(c->programs);
}

#endif
