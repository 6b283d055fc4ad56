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
    REACHES = 0,                         /* a wait for a word that is as far, modulo 2^32 (but HIP's), or farther */
    FEW = 8,                             /* transfers that are given at once */
    LOOKING_NS = 100000,                 /* how long the thread looks for more transfers before it sleeps */
    UNDER_WAY = 24,                      /* submissions: with FEW each, less than the 340 transfers that fill a stream */
};

/* masks: the wait takes a mask of the word's bits. */
void vkp_group_vendor(vkp_group *g, const uint64_t *functions, int masks) {
    g->vendor.push = (push_fn)(uintptr_t)functions[0];
    g->vendor.pop = (pop_fn)(uintptr_t)functions[1];
    g->vendor.wait = (word_fn)(uintptr_t)functions[2];
    g->vendor.masked = masks ? (masked_fn)(uintptr_t)functions[2] : NULL;
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
    uint32_t number = ++road->sent;
    int32_t status = v->masked ? v->masked(stream, road->raised, number, REACHES, UINT32_MAX)
                               : v->wait(stream, road->raised, number, REACHES);
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

/* ---- the thread that gives transfers where they are many, each of which takes the caller some 7 us ----
 *
 * Few are given by the caller, since waking the thread takes longer. But where waits of the group spin, the thread looks
 * for more for a while before it sleeps, and takes those that come then: calls that follow each other return sooner.
 *
 * There is one for all groups: a card's streams share few queues of the hardware, in which what waits holds up what was
 * given later. So transfers must be given in the order in which the kernels were submitted that they wait for.
 */

static struct {
    int running;
    pthread_mutex_t lock;
    pthread_cond_t wake, given;
    vkp_program **programs;              /* ring: whose transfers are to be given, oldest first */
    uint64_t head, tail, capacity;
    int is_looking, is_wanted;           /* the thread looks for more; it is to do so before it sleeps */
} carrier = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .given = PTHREAD_COND_INITIALIZER};

/* Looks for more programs for a while; the caller holds the carrier's lock. */
static void look(void) {
    uint64_t since = now_ns(), tail = carrier.tail;
    carrier.is_looking = 1;
    pthread_mutex_unlock(&carrier.lock);
    while (__atomic_load_n(&carrier.tail, __ATOMIC_RELAXED) == tail && now_ns() - since < LOOKING_NS) pause_briefly();
    pthread_mutex_lock(&carrier.lock);
    carrier.is_looking = 0;
    if (carrier.tail == tail) carrier.is_wanted = 0;
}

static void *give(void *unused) {
    pthread_mutex_lock(&carrier.lock);
    for (;;) {
        while (carrier.head == carrier.tail && !carrier.is_wanted) pthread_cond_wait(&carrier.wake, &carrier.lock);
        if (carrier.head == carrier.tail) {
            look();
            continue;
        }
        vkp_program *p = carrier.programs[carrier.head % carrier.capacity];
        uint32_t failed = 0;
        pthread_mutex_unlock(&carrier.lock);
        if (carry(p, &failed) != SUCCESS) {
            lock_group(p->group);
            release(p->group);
            pthread_mutex_unlock(&p->group->lock);
        }
        pthread_mutex_lock(&carrier.lock);
        carrier.head++;
        p->waiting--;
        pthread_cond_broadcast(&carrier.given);
    }
    return unused;
}

static int starts(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, give, NULL)) return 0;
    pthread_detach(thread);
    return 1;
}

/* Makes room for one more program, and has the thread run; false where it cannot. The caller holds the carrier's lock. */
static int takes_one(void) {
    if (carrier.tail - carrier.head == carrier.capacity) {
        uint64_t capacity = carrier.capacity ? 2 * carrier.capacity : 64;
        vkp_program **programs = malloc(capacity * sizeof *programs);
        if (!programs) return 0;
        for (uint64_t i = carrier.head; i < carrier.tail; i++)
            programs[i % capacity] = carrier.programs[i % carrier.capacity];
        free(carrier.programs);
        carrier.programs = programs;
        carrier.capacity = capacity;
    }
    if (!carrier.running) carrier.running = starts();
    return carrier.running;
}

/* Do the streams have room? Else the vendor's call would wait for the cards, and with it whoever submits anything. */
static int is_shallow(const vkp_group *g) {
    for (uint32_t r = 0; r < g->n; r++) {
        vkp_queue *q = g->queues[r];
        uint64_t reached;
        if (!q || q->counter(q->device, q->timeline, &reached) != SUCCESS || q->last - reached > UNDER_WAY) return 0;
    }
    return 1;
}

/* Has all transfers of a program given to their streams, after those of the programs before. The caller holds the lock of
 * all submissions. */
static int32_t carry_all(vkp_program *p, uint32_t *failed) {
    int few = p->ntransfers <= FEW && is_shallow(p->group);
    pthread_mutex_lock(&carrier.lock);
    int busy = carrier.head != carrier.tail, handed = (busy || !few || carrier.is_looking) && takes_one();
    if (handed) {
        carrier.programs[carrier.tail % carrier.capacity] = p;
        __atomic_store_n(&carrier.tail, carrier.tail + 1, __ATOMIC_RELAXED);
        p->waiting++;
        if (!carrier.is_looking) pthread_cond_signal(&carrier.wake);
    } else if (p->group->spin_ns && !carrier.is_wanted) {
        if (!carrier.running) carrier.running = starts();
        carrier.is_wanted = carrier.running;
        pthread_cond_signal(&carrier.wake);
    }
    while (busy && !handed && carrier.head != carrier.tail) pthread_cond_wait(&carrier.given, &carrier.lock);
    pthread_mutex_unlock(&carrier.lock);
    return handed ? SUCCESS : carry(p, failed);
}

/* Waits until the thread has nothing of a program, which is to be freed. In a forked child there is no thread. */
static void await_carrier(vkp_program *p) {
    if (forked) return;
    pthread_mutex_lock(&carrier.lock);
    while (p->waiting) pthread_cond_wait(&carrier.given, &carrier.lock);
    pthread_mutex_unlock(&carrier.lock);
}

#endif
