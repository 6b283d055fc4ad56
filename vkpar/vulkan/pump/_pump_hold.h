/* Holding: a program of carried slots that comes while its devices have two calls' work before them waits here, and goes to
 * the drivers with those that come meanwhile, in one call for each queue. A device pays half as much for the gap between
 * two batches of one call as for that between two calls.
 *
 * What is held counts in `last` of its queues, and not in `submitted`. Whoever needs one of these queues has all of it
 * submitted first (settle); what nobody comes back to the threads of streams submit. Where a driver refuses, its groups are
 * aborted and what it was given stays: whoever comes next tries again, so that what was gathered between programs is not
 * lost.
 */
#ifndef VKPAR_PUMP_HOLD_H
#define VKPAR_PUMP_HOLD_H

#include "_pump_launch.h"
#include "_pump_peer.h"
#include "_pump_send.h"
#include "_pump_types.h"

static struct { vkp_program *programs[HOLDS]; uint32_t n; } holding; /* oldest first; under the lock `entry` */

static void abort_group(vkp_group *g);

static int is_member(const vkp_group *g, const vkp_queue *q) {
    for (uint32_t r = 0; q && r < g->n; r++)
        if (g->queues[r] == q) return 1;
    return 0;
}

/* Was it refused before? Then it is tried again before anything is submitted. */
static int was_refused(const vkp_stream *s) { return s && s->sealed; }

/* Has the device more to do than what its last call gave it? */
static int is_behind(vkp_queue *q) {
    uint64_t reached;
    return q->counter(q->device, q->timeline, &reached) == SUCCESS && reached < q->before;
}

static int is_behind_all(const vkp_group *g) {
    for (uint32_t r = 0; r < g->n; r++)
        if (!is_behind(g->queues[r])) return 0;
    return 1;
}

/* Can what a program asks of a queue be put by? Not beside what the device's other queue is given. */
static int holds_queue(const vkp_group *g, vkp_queue *q) {
    const vkp_queue *other = q->sibling;
    if (!q->stream || q->sending || was_refused(q->stream) || is_member(g, other)) return 0;
    return !other || (!other->sending && !other->nheld && !(other->stream && other->stream->count));
}

/* Is a program to be held? Its like are held already, or the devices have enough to do. */
static int may_hold(vkp_program *p) {
    vkp_group *g = p->group;
    if (!p->ntransfers || g->n > HELD_RANKS || forked || holding.n == HOLDS) return 0;
    for (uint32_t r = 0; r < g->n; r++) {
        vkp_queue *q = g->queues[r];
        if (batches_of(p, r) != 1 || !holds_queue(g, q)) return 0;
        if (!q->held) q->held = calloc(2 * HOLDS, sizeof *q->held);
        if (!q->held) return 0;
    }
    return holding.n || is_behind_all(g);
}

/* Copies a batch behind those that the queue holds. */
static void hold_batch(vkp_queue *q, const submit_info *given, int waits) {
    held_batch *held = &q->held[q->nheld++];
    const timeline_info *values = given->next;
    memcpy(held->waits, given->waits, given->wait_count * sizeof *held->waits);
    memcpy(held->values, values->wait_values, given->wait_count * sizeof *held->values);
    memcpy(held->stages, given->stages, given->wait_count * sizeof *held->stages);
    memcpy(held->commands, given->commands, given->command_count * sizeof *held->commands);
    held->waits_somewhere = waits;
    held->signal = given->signals[0];
    held->signalled = values->signal_values[0];
    held->timeline = (timeline_info){STYPE_TIMELINE_SUBMIT, NULL, given->wait_count, held->values, 1, &held->signalled};
    held->submit = (submit_info){STYPE_SUBMIT_INFO, &held->timeline, given->wait_count, held->waits, held->stages,
                                 given->command_count, held->commands, 1, &held->signal};
    set_last(q, held->signalled);
}

/* Puts by what was built of a program, and what its devices had gathered before. */
static void hold(vkp_program *p) {
    int waits = 0;
    for (uint32_t r = 0; r < p->group->n; r++) waits |= p->submits[p->first[r] + r + 1].wait_count > 0;
    for (uint32_t r = 0; r < p->group->n; r++) {
        vkp_queue *q = p->group->queues[r];
        const submit_info *batch = p->submits + p->first[r] + r + 1;
        if (p->gathered[r].command) {
            hold_batch(q, batch - 1, (batch - 1)->wait_count > 0);
            note_sent(q->stream, p->gathered[r].value, now_ns());
        }
        hold_batch(q, batch, waits);
        if (q->stream->parked) pthread_cond_signal(&q->stream->wake);
    }
    holding.programs[holding.n++] = p;
    __atomic_add_fetch(&p->held, 1, __ATOMIC_RELAXED);
}

/* Writes down what a queue holds as submissions, and returns how many. A batch is one with what comes before it, and
 * signals for both, where no batch of its program waits: else one of another rank could wait for a value that this one
 * keeps back, and this one for flags of that rank's. */
static uint32_t join(vkp_queue *q, submit_info *submits, timeline_info *timelines, void **commands) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->nheld; i++) {
        const held_batch *held = &q->held[i];
        if (!i || !q->skips || held->waits_somewhere) {
            submits[n] = held->submit;
            submits[n].commands = commands;
            timelines[n] = held->timeline;
            submits[n].next = &timelines[n];
            n++;
        } else {
            submits[n - 1].command_count += held->submit.command_count;
            timelines[n - 1].signal_values = &held->signalled;
        }
        for (uint32_t k = 0; k < held->submit.command_count; k++) *commands++ = held->commands[k];
    }
    return n;
}

static int32_t submit_queue(vkp_queue *q) {
    submit_info submits[2 * HOLDS];
    timeline_info timelines[2 * HOLDS];
    void *commands[4 * HOLDS];
    if (!q || !q->nheld) return SUCCESS;
    int32_t result = q->submit(q->queue, join(q, submits, timelines, commands), submits, 0);
    if (result != SUCCESS) return noted(q->stream, SUBMIT, result);
    set_submitted(q, q->held[q->nheld - 1].signalled);
    q->nheld = 0;
    return SUCCESS;
}

/* Ends the groups that have programs here and the queue among theirs, since its device refused some. */
static void fail_held(int32_t result, const vkp_queue *refused) {
    for (uint32_t i = 0; i < holding.n; i++) {
        vkp_group *g = holding.programs[i]->group;
        uint32_t rank = 0;
        while (rank < g->n && g->queues[rank] != refused) rank++;
        if (rank == g->n) continue;
        lock_group(g);
        fail(g, result, rank, SUBMIT_FAILED);
        pthread_mutex_unlock(&g->lock);
        abort_group(g);
    }
}

static int has_held(const vkp_group *g) {
    for (uint32_t r = 0; r < g->n; r++)
        if (g->queues[r] && g->queues[r]->nheld) return 1;
    return 0;
}

/* Submits all that is held, then gives its transfers to the streams. What a device refuses stays with its programs. */
static int32_t submit_held(void) {
    int32_t result = SUCCESS;
    for (uint32_t i = 0; i < holding.n; i++) {
        vkp_group *g = holding.programs[i]->group;
        for (uint32_t r = 0; r < g->n; r++) {
            int32_t given = submit_queue(g->queues[r]);
            if (given == SUCCESS) continue;
            fail_held(given, g->queues[r]);
            result = given;
        }
    }
    uint32_t count = holding.n, failed;
    holding.n = 0;
    for (uint32_t i = 0; i < count; i++) {
        vkp_program *p = holding.programs[i];
        if (has_held(p->group)) {
            holding.programs[holding.n++] = p;
            continue;
        }
        if (carry_all(p, &failed) != SUCCESS) abort_group(p->group);
        __atomic_sub_fetch(&p->held, 1, __ATOMIC_RELEASE); /* from here on others may free it */
    }
    return result;
}

/* Once a program was held: submits where a device of its group has no more than one call's work left. *failed is the rank
 * of what fails for this group. */
static int32_t submit_if_dry(vkp_group *g, uint32_t *failed) {
    if (holding.n < HOLDS && is_behind_all(g)) return SUCCESS;
    submit_held();
    lock_group(g);
    int32_t result = g->error;
    *failed = g->culprit;
    pthread_mutex_unlock(&g->lock);
    return result;
}

/* Gives up what drivers refuse: nothing will signal its values. */
static void drop_held(int32_t why) {
    for (uint32_t i = 0; i < holding.n; i++) {
        vkp_group *g = holding.programs[i]->group;
        __atomic_sub_fetch(&holding.programs[i]->held, 1, __ATOMIC_RELEASE);
        for (uint32_t r = 0; r < g->n; r++) {
            vkp_queue *q = g->queues[r];
            if (!q || !q->nheld) continue;
            q->lost_after = q->submitted;
            q->lost_until = q->last;
            q->nheld = 0;
            q->sibling_waited = 0;       /* batches that went may have waited alone */
            __atomic_store_n(&q->refused, why, __ATOMIC_RELEASE);
        }
    }
    holding.n = 0;
}

/* Before a program goes that is held. */
static void let_go(vkp_program *p) {
    if (forked) return;
    pthread_mutex_lock(&entry);
    int32_t result = p->held ? submit_held() : SUCCESS;
    if (p->held) drop_held(result);
    pthread_mutex_unlock(&entry);
}

#endif
