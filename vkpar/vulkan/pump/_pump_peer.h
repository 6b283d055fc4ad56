/* Roads between cards that a vendor's copy engines serve: some streams, its lanes, for each ordered pair of ranks.
 *
 * A transfer on a lane waits in the stream until the sender's kernel has raised the sender's word, copies pieces of slots
 * from the sender's memory to the same place in the receiver's, and then raises the receiver's word, for which a kernel
 * of the receiver's waits. No host thread takes part. Words count the transfers of a lane from the beginning, modulo 2^32.
 */
#ifndef VKPAR_PUMP_PEER_H
#define VKPAR_PUMP_PEER_H

#include "_pump_bridge.h"
#include "_pump_types.h"

enum { REACHES = 0 };                    /* a wait for a word that is as far, modulo 2^32, or farther */

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
    for (uint32_t i = 0; i < p->ntransfers && !status; i++) {
        const vkp_transfer *t = &p->transfers[i];
        vkp_road *road = road_of(g, t->src, t->dst, t->lane);
        uint64_t wanted = road->context;
        void *old;
        if (context && wanted != context) g->vendor.pop(&old);
        if (wanted != context) status = g->vendor.push((void *)(uintptr_t)wanted);
        context = status ? 0 : wanted;
        if (!status) status = carry_one(p, t, road, &call);
        if (status) *failed = t->src;
    }
    void *old;
    if (context) g->vendor.pop(&old);
    if (!status) return SUCCESS;
    lock_group(g);
    g->status = status;
    fail(g, UNKNOWN, *failed, call);
    pthread_mutex_unlock(&g->lock);
    return UNKNOWN;
}

#endif
