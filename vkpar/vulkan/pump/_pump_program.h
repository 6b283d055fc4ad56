/* Programs: batches of several queues, in one global order, and what each has to wait for. */
#ifndef VKPAR_PUMP_PROGRAM_H
#define VKPAR_PUMP_PROGRAM_H

#include "_pump_bridge.h"
#include "_pump_hold.h"
#include "_pump_launch.h"
#include "_pump_peer.h"
#include "_pump_send.h"
#include "_pump_types.h"

/* Of a read slot: CARRIED: a transfer brings it, for which the batch itself waits. In place of one: AFTER and a queue: what
 * that was given before the program; BEGINS: here one begins, of several that are submitted at once. */
enum { CARRIED = 1u << 31, AFTER = 1u << 30, BEGINS = 1u << 29 };

struct vkp_touches { uint32_t n; vkp_touch items[]; };

static uint32_t add_sibling_wait(vkp_queue *q, uint64_t *waits, uint64_t *values, uint32_t count);

void vkp_program_free(vkp_program *p) {
    if (!p) return;
    if (__atomic_load_n(&p->held, __ATOMIC_ACQUIRE)) let_go(p);
    if (__atomic_load_n(&p->is_sent, __ATOMIC_ACQUIRE)) await_sender(p->group, p);
    if (p->ntransfers) await_carrier(p);
    free(p->rank); free(p->read_start); free(p->reads); free(p->write_start); free(p->writes); free(p->commands);
    free(p->gates); free(p->gate_values); free(p->submits); free(p->timelines); free(p->waits); free(p->wait_values);
    free(p->signals); free(p->signal_values); free(p->required); free(p->stages); free(p->first); free(p->needs);
    free(p->opening); free(p->gathered); free(p->touches); free(p->transfers); free(p->pieces); free(p->opens);
    free(p->late);
    free(p);
}

static void *copy_of(const void *source, size_t nbytes) {
    void *made = malloc(nbytes ? nbytes : 1);
    if (made) memcpy(made, source, nbytes);
    return made;
}

/* Batches in global order: batch i runs commands[i] on rank[i], reads slots reads[read_start[i]..read_start[i+1]]
 * and writes slots writes[write_start[i]..write_start[i+1]]. It waits for gate_values[i] on gates[i] too, unless 0. */
vkp_program *vkp_program_new(vkp_group *g, uint32_t nbatches, const uint32_t *rank, const uint64_t *commands,
                             const uint32_t *read_start, const uint32_t *reads, const uint32_t *write_start,
                             const uint32_t *writes, const uint64_t *gates, const uint64_t *gate_values) {
    vkp_program *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    size_t width = g->n + WAITS, waits = width * (nbatches ? nbatches : 1);
    p->group = g;
    p->nbatches = nbatches;
    p->rank = copy_of(rank, nbatches * sizeof *rank);
    p->read_start = copy_of(read_start, (nbatches + 1) * sizeof *read_start);
    p->reads = copy_of(reads, read_start[nbatches] * sizeof *reads);
    p->write_start = copy_of(write_start, (nbatches + 1) * sizeof *write_start);
    p->writes = copy_of(writes, write_start[nbatches] * sizeof *writes);
    p->commands = copy_of(commands, nbatches * sizeof *commands);
    p->gates = copy_of(gates, nbatches * sizeof *gates);
    p->gate_values = copy_of(gate_values, nbatches * sizeof *gate_values);
    p->submits = calloc(nbatches + g->n + 1, sizeof *p->submits);
    p->gathered = calloc(g->n + 1, sizeof *p->gathered);
    p->timelines = calloc(nbatches + 1, sizeof *p->timelines);
    p->waits = malloc(waits * sizeof *p->waits);
    p->wait_values = malloc(waits * sizeof *p->wait_values);
    p->signals = malloc((nbatches + 1) * sizeof *p->signals);
    p->signal_values = malloc((nbatches + 1) * sizeof *p->signal_values);
    p->required = calloc(g->n, sizeof *p->required);
    p->stages = malloc(width * sizeof *p->stages);
    p->first = calloc(g->n + 1, sizeof *p->first);
    p->needs = malloc((g->n + read_start[nbatches]) * sizeof *p->needs);
    p->opening = calloc(2 * g->n + 1, sizeof *p->opening);
    if (!p->rank || !p->read_start || !p->reads || !p->write_start || !p->writes || !p->commands || !p->gates ||
        !p->gate_values || !p->submits || !p->gathered || !p->timelines || !p->waits || !p->wait_values || !p->signals ||
        !p->signal_values || !p->required || !p->stages || !p->first || !p->needs || !p->opening) {
        vkp_program_free(p);
        return NULL;
    }
    for (size_t i = 0; i < width; i++) p->stages[i] = STAGE_ALL_COMMANDS;
    for (uint32_t i = 0; i < nbatches; i++) p->first[rank[i] + 1]++;
    for (uint32_t r = 0; r < g->n; r++) p->first[r + 1] += p->first[r];
    return p;
}

/* Says what the program does to arrays, in order. Returns a VkResult. */
int32_t vkp_program_touch(vkp_program *p, uint32_t n, const vkp_touch *touches) {
    uint32_t ranks = p->group->n;
    struct vkp_touches *made = malloc(sizeof *made + (ranks + n) * sizeof *touches);
    if (!made) return OUT_OF_HOST_MEMORY;
    made->n = ranks + n;
    memcpy(made->items + ranks, touches, n * sizeof *touches);
    pthread_mutex_lock(&entry);
    struct vkp_touches *old = p->touches;
    p->touches = made;
    pthread_mutex_unlock(&entry);
    free(old);
    return SUCCESS;
}

/* Has the next submissions begin with `command` on `rank`, before its first batch in the same submission; 0: with none. */
void vkp_program_prelude(vkp_program *p, uint32_t rank, uint64_t command) {
    p->opening[2 * rank] = (void *)(uintptr_t)command;
}

static void require(vkp_program *p, uint32_t rank, uint32_t source, uint64_t value) {
    if (source != rank && value > p->required[source]) p->required[source] = value;
}

/* Notes a need where the slot's writer and its reader do not share memory, for every read: that the writer's timeline
 * has its value does not say that the bytes are here. The first reader in each memory has them copied; what the others
 * wait for comes after that in the writer's queue of needs. */
static int fetch(vkp_program *p, uint32_t rank, uint32_t slot) {
    vkp_group *g = p->group;
    uint32_t source = g->writer[slot];
    uint64_t value = g->written[slot], *waited = &g->waited[rank * g->n + source];
    if (!value || g->mirror[source] == g->mirror[rank]) return 0;
    uint8_t *fetched = &g->fetched[(size_t)slot * (g->n + 1) + (g->mirror[rank] ? rank : g->n)];
    p->needs[p->nneeds++] = (need){value, 0, source, rank, *fetched ? NO_SLOT : slot};
    *fetched = 1;
    if (value > *waited) *waited = value;
    return 1;
}

/* What batch i must wait for: the writers of what it reads, every reader and the writer of what it overwrites. */
static void collect(vkp_program *p, uint32_t i, uint64_t value, const uint64_t *before) {
    vkp_group *g = p->group;
    uint32_t rank = p->rank[i];
    memset(p->required, 0, g->n * sizeof *p->required);
    p->nneeds = 0;
    for (uint32_t k = p->read_start[i]; k < p->read_start[i + 1]; k++) {
        uint32_t slot = p->reads[k] & ~(CARRIED | AFTER | BEGINS);
        if (p->reads[k] & BEGINS) continue;
        if (p->reads[k] & AFTER) {
            require(p, rank, slot, before[slot]);
            continue;
        }
        if (p->reads[k] & CARRIED) {
            p->late[p->nlate++] = (late_read){value, slot, rank};
            continue;
        }
        if (!fetch(p, rank, slot)) require(p, rank, g->writer[slot], g->written[slot]);
        g->read[slot * g->n + rank] = value;
    }
    for (uint32_t k = p->write_start[i]; k < p->write_start[i + 1]; k++) {
        uint32_t slot = p->writes[k];
        require(p, rank, g->writer[slot], g->written[slot]);
        for (uint32_t r = 0; r < g->n; r++) {
            require(p, rank, r, g->read[slot * g->n + r]);
            g->read[slot * g->n + r] = 0;
        }
        g->writer[slot] = rank;
        g->written[slot] = value;
        memset(&g->fetched[(size_t)slot * (g->n + 1)], 0, g->n + 1);
    }
}

/* Looks at the counter: a wait of no length takes several times as long. */
static int has_reached(vkp_queue *q, uint64_t value) {
    uint64_t now = 0;
    return q->counter(q->device, q->timeline, &now) == SUCCESS && now >= value;
}

static int32_t build_waits(vkp_program *p, uint32_t i, uint64_t *waits, uint64_t *values, uint32_t *count) {
    vkp_group *g = p->group;
    uint32_t n = g->n, rank = p->rank[i];
    *count = 0;
    for (uint32_t src = 0; src < n; src++) {
        uint64_t value = p->required[src], *waited = &g->waited[rank * n + src];
        if (value <= *waited) continue;
        *waited = value;
        if (g->native[rank * n + src]) {
            waits[*count] = g->native[rank * n + src];
            values[(*count)++] = value;
        } else if (value > g->queues[src]->submitted || !has_reached(g->queues[src], value)) {
            p->needs[p->nneeds++] = (need){value, 0, src, rank, NO_SLOT};
        }
    }
    if (p->nneeds) {
        waits[*count] = g->locals[rank].semaphore;
        int32_t result = park(g, rank, p->needs, p->nneeds, &values[(*count)++]);
        if (result != SUCCESS) return result;
    }
    if (p->gates[i]) {
        waits[*count] = p->gates[i];
        values[(*count)++] = p->gate_values[i];
    }
    *count = add_sibling_wait(g->queues[rank], waits, values, *count);
    return SUCCESS;
}

static int32_t build(vkp_program *p, uint64_t *next, uint32_t *fill) {
    vkp_group *g = p->group;
    size_t width = g->n + WAITS;
    uint64_t before[g->n];
    memcpy(before, next, sizeof before);
    p->nlate = 0;
    for (uint32_t i = 0; i < p->nbatches; i++) {
        uint32_t rank = p->rank[i], at = fill[rank]++, count;
        if (p->read_start[i] < p->read_start[i + 1] && p->reads[p->read_start[i]] & BEGINS)
            memcpy(before, next, sizeof before);
        if (p->opens && p->opens[i]) note_late(p);
        uint64_t value = ++next[rank], *waits = p->waits + at * width, *values = p->wait_values + at * width;
        collect(p, i, value, before);
        int32_t result = build_waits(p, i, waits, values, &count);
        if (result != SUCCESS) return result;
        p->signals[at] = g->queues[rank]->timeline;
        p->signal_values[at] = value;
        p->timelines[at] = (timeline_info){STYPE_TIMELINE_SUBMIT, NULL, count, values, 1, &p->signal_values[at]};
        submit_info *submit = &p->submits[at + rank + 1];
        *submit = (submit_info){STYPE_SUBMIT_INFO, &p->timelines[at], count, waits, p->stages, 1,
                                &p->commands[i], 1, &p->signals[at]};
        if (at == p->first[rank] && p->opening[2 * rank]) {
            p->opening[2 * rank + 1] = p->commands[i];
            submit->command_count = 2;
            submit->commands = &p->opening[2 * rank];
        }
    }
    note_late(p);
    return SUCCESS;
}

/* May what was built be submitted? An abort that comes later finds all its parked entries and releases them. */
static int32_t may_submit(vkp_group *g) {
    lock_group(g);
    int32_t result = refusal(g);
    pthread_mutex_unlock(&g->lock);
    return result;
}

/* Writes down what the program does to arrays, and the values at which it is done. */
static void promise_touches(vkp_program *p, const uint64_t *next) {
    for (uint32_t r = 0; p->touches && r < p->group->n; r++)
        p->touches->items[r] = (vkp_touch){0, batches_of(p, r) ? next[r] : 0, r, 0, VALUE};
    /* Without slots nobody waits for others: what is not submitted writes nothing, what is runs to its end. */
    if (p->touches) write_down(p->touches->items, p->touches->n, p->group->nslots ? p->group->number : 0);
}

/* Was any batch submitted? */
static int began(const vkp_program *p) {
    for (uint32_t r = 0; r < p->group->n; r++)
        if (batches_of(p, r) && p->group->queues[r]->submitted >= value_of(p, r, 0)) return 1;
    return 0;
}

/* Prepares what a rank's device has gathered: it is submitted in one call with the rank's first batches, or held with them;
 * at once where the rank has none, or where batches go to the device's other queue, too, which wait for it. */
static int32_t prepare_gathered(vkp_program *p, uint32_t rank, int holds) {
    vkp_queue *q = p->group->queues[rank];
    p->gathered[rank].command = NULL;
    if (!batches_of(p, rank) || is_member(p->group, q->sibling) || was_refused(q->stream)) return flush_device(q);
    int ended, result = holds ? SUCCESS : settle_device(q);
    if (result == SUCCESS && q->sibling && !holds) result = flush(q->sibling->stream);
    if (result == SUCCESS) result = seal(q->stream, &ended);
    if (result == SUCCESS && ended)
        p->submits[p->first[rank] + rank] = fill_one(&p->gathered[rank], q, q->stream->open->commands, q->last);
    return result;
}

static int32_t enqueue(vkp_program *p, uint64_t *values, uint32_t *failed) {
    vkp_group *g = p->group;
    uint64_t next[g->n], sibling_waited[g->n];
    uint32_t fill[g->n];
    int32_t result = SUCCESS;
    *failed = g->n;
    int holds = may_hold(p);
    for (uint32_t r = 0; r < g->n; r++) {
        sibling_waited[r] = g->queues[r]->sibling_waited;
        if (result == SUCCESS) result = prepare_gathered(p, r, holds);
        next[r] = g->queues[r]->last;
        fill[r] = p->first[r];
    }
    if (result == SUCCESS && p->touches && !expect(p->touches->n)) result = OUT_OF_HOST_MEMORY;
    if (result == SUCCESS) result = build(p, next, fill);
    if (result == SUCCESS) result = may_submit(g);
    if (result == SUCCESS) {
        promise_touches(p, next);
        if (holds) hold(p);
        result = holds ? submit_if_dry(g, failed) : submit_all(p, failed);
        if (result != SUCCESS && !began(p)) take_back(g);
    }
    if (result == SUCCESS && p->ntransfers && !holds) result = carry_all(p, failed);
    if (result != SUCCESS) {
        /* What was not submitted has not waited for its device's other queue. The slot table counts it all the same,
         * and local timelines have entries for it: this group is of no more use, so let go of all that is parked. */
        for (uint32_t r = *failed < g->n ? *failed : 0; r < g->n; r++) g->queues[r]->sibling_waited = sibling_waited[r];
        for (uint32_t r = 0; r < g->n; r++) flush(g->queues[r]->stream);
        abort_group(g);
    }
    for (uint32_t r = 0; r < g->n; r++) values[r] = g->queues[r]->last;
    return result;
}

/* Submits every batch; values[r] is then the last value of rank r's queue. On an error the group is aborted. Then
 * *failed is the rank whose submission failed, and values[r] says how far rank r's batches were submitted; or it is the
 * number of ranks where none was submitted. */
int32_t vkp_enqueue(vkp_program *p, uint64_t *values, uint32_t *failed) {
    pthread_mutex_lock(&entry);
    int32_t result = enqueue(p, values, failed);
    pthread_mutex_unlock(&entry);
    return result;
}

#endif
