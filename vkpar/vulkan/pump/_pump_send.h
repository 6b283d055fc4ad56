/* Sending: a program's batches go to the drivers. Where they are many, the first ones of every rank go ahead, as a driver
 * takes about a microsecond a batch and the devices work meanwhile; a thread of the group submits the others, and the
 * call that enqueues them returns. Whoever next uses one of their queues waits for that first.
 */
#ifndef VKPAR_PUMP_SEND_H
#define VKPAR_PUMP_SEND_H

#include "_pump_bridge.h"
#include "_pump_types.h"

enum {
    AHEAD = 8,                           /* batches of a rank that go ahead where there are more than twice as many */
    TURN = 32,                           /* batches of a rank that the thread submits before those of the next rank */
};

static void set_submitted(vkp_queue *q, uint64_t value) {
    q->before = q->submitted;
    __atomic_store_n(&q->submitted, value, __ATOMIC_RELEASE);
}
static void set_last(vkp_queue *q, uint64_t value) { __atomic_store_n(&q->last, value, __ATOMIC_RELEASE); }

static uint32_t batches_of(const vkp_program *p, uint32_t rank) { return p->first[rank + 1] - p->first[rank]; }

static uint32_t ahead_of(const vkp_program *p, uint32_t rank) {
    uint32_t count = batches_of(p, rank);
    return count > 2 * AHEAD ? AHEAD : count;
}

static uint64_t value_of(const vkp_program *p, uint32_t rank, uint32_t batch) {
    return p->signal_values[p->first[rank] + batch];
}

static void note_gathered(vkp_queue *q, const one_submission *gathered, uint64_t begun, int32_t result);
static int32_t submit_held(void);
static void drop_held(int32_t why);

/* Submits `count` of a rank's batches, from `begin` on; what its device had gathered goes before them in the same call,
 * which costs a driver and a GPU half of what two do. */
static int32_t submit_part(vkp_program *p, uint32_t rank, uint32_t begin, uint32_t count) {
    vkp_queue *q = p->group->queues[rank];
    if (!count) return SUCCESS;
    const one_submission *gathered = &p->gathered[rank];
    uint32_t before = !begin && gathered->command;
    uint64_t begun = before ? now_ns() : 0;
    int32_t result = q->submit(q->queue, before + count, p->submits + p->first[rank] + rank + 1 + begin - before, 0);
    if (result == SUCCESS) set_submitted(q, value_of(p, rank, begin + count - 1));
    if (before) note_gathered(q, gathered, begun, result);
    return result;
}

/* Submits what goes ahead. *failed is the first rank that did not get all of it. */
static int32_t submit_first(vkp_program *p, uint32_t *failed) {
    for (uint32_t r = 0; r < p->group->n; r++) {
        int32_t result = submit_part(p, r, 0, ahead_of(p, r));
        if (result == SUCCESS) continue;
        *failed = r;
        return result;
    }
    return SUCCESS;
}

/* Submits the others, in turns. */
static int32_t submit_rest(vkp_program *p, uint32_t *failed) {
    uint32_t n = p->group->n, left = 1;
    for (uint32_t turn = 0; left; turn++) {
        left = 0;
        for (uint32_t r = 0; r < n; r++) {
            uint32_t begin = ahead_of(p, r) + turn * TURN, total = batches_of(p, r);
            if (begin >= total) continue;
            uint32_t count = total - begin < TURN ? total - begin : TURN;
            int32_t result = submit_part(p, r, begin, count);
            if (result != SUCCESS) {
                *failed = r;
                return result;
            }
            left |= begin + count < total;
        }
    }
    return SUCCESS;
}

/* ---- the group's thread ---- */

/* Looks now and then for a while, since waking a thread takes the caller up to 70 us in virtual machines; then sleeps. */
static void rest(sender *s, uint64_t since) {
    static const struct timespec nap = {0, NAP_NS};
    if (now_ns() - since < NAPPING_NS) {
        pthread_mutex_unlock(&s->lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&s->lock);
    } else {
        s->parked = 1;
        pthread_cond_wait(&s->wake, &s->lock);
        s->parked = 0;
    }
}

static void *send(void *argument) {
    vkp_group *g = argument;
    sender *s = &g->sender;
    uint64_t since = now_ns();
    pthread_mutex_lock(&s->lock);
    for (;;) {                           /* what was handed over before the end is submitted: somebody waits for it */
        if (s->program) {
            vkp_program *p = s->program;
            uint32_t failed = g->n;
            pthread_mutex_unlock(&s->lock);
            int32_t result = submit_rest(p, &failed);
            if (result != SUCCESS) {     /* what was parked waits for what never comes */
                pthread_mutex_lock(&g->lock);
                fail(g, result, failed, SUBMIT_FAILED);
                release(g);
                pthread_mutex_unlock(&g->lock);
            }
            pthread_mutex_lock(&s->lock);
            s->result = result;
            s->program = NULL;
            __atomic_store_n(&p->is_sent, 0, __ATOMIC_RELEASE);
            since = now_ns();
            pthread_cond_broadcast(&s->sent);
        } else if (s->ends) {
            break;
        } else {
            rest(s, since);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Counts a rank's batches as its queue's last ones before the thread submits the rest of them. */
static void promise(vkp_program *p, uint32_t rank) {
    vkp_queue *q = p->group->queues[rank];
    uint32_t count = batches_of(p, rank);
    if (!count) return;
    set_last(q, value_of(p, rank, count - 1));
    if (count == ahead_of(p, rank)) return;
    q->sending = p->group;
    q->promised = q->last;
    p->group->sends[rank] = 1;
}

/* Has the thread submit what does not go ahead; false where there is no thread and none can be started. */
static int hand_over(vkp_program *p) {
    vkp_group *g = p->group;
    sender *s = &g->sender;
    pthread_mutex_lock(&s->lock);
    int takes = !s->ends;
    if (takes && !s->running) takes = s->running = !pthread_create(&s->thread, NULL, send, g);
    if (takes) {
        s->program = p;
        __atomic_store_n(&p->is_sent, 1, __ATOMIC_RELEASE);
        for (uint32_t r = 0; r < g->n; r++) promise(p, r);
        if (s->parked) pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return takes;
}

/* Submits all that was built, or has the thread do so. *failed is the first rank that did not get all. */
static int32_t submit_all(vkp_program *p, uint32_t *failed) {
    vkp_group *g = p->group;
    int is_long = 0;
    for (uint32_t r = 0; r < g->n; r++) is_long |= batches_of(p, r) > ahead_of(p, r);
    int32_t result = submit_first(p, failed);
    if (result == SUCCESS && is_long && hand_over(p)) return SUCCESS;
    if (result == SUCCESS) result = submit_rest(p, failed);
    for (uint32_t r = 0; r < g->n; r++)
        if (g->queues[r]->submitted > g->queues[r]->last) set_last(g->queues[r], g->queues[r]->submitted);
    return result;
}

/* ---- after that; all of these but await_sender hold the lock of all submissions ---- */

/* Notes what the thread could not submit: nothing will signal those values, and waits for them say why. */
static void conclude(vkp_group *g) {
    for (uint32_t r = 0; g->sends && r < g->n; r++) {
        if (!g->sends[r]) continue;
        g->sends[r] = 0;
        vkp_queue *q = g->queues[r];
        q->sending = NULL;
        if (q->promised == q->submitted) continue;
        q->lost_after = q->submitted;
        q->lost_until = q->promised;
        __atomic_store_n(&q->refused, g->sender.result, __ATOMIC_RELEASE);
    }
}

/* Waits until the thread has nothing to do, or nothing of `p`. */
static void await_sender(vkp_group *g, const vkp_program *p) {
    if (forked) return;
    sender *s = &g->sender;
    pthread_mutex_lock(&s->lock);
    while (s->program && (!p || s->program == p)) pthread_cond_wait(&s->sent, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* Has what the queue holds submitted. An error is its own: another device's refusal does not count. */
static int32_t settle_held(vkp_queue *q) {
    int32_t result = q->nheld ? submit_held() : SUCCESS;
    return q->nheld ? result : SUCCESS;
}

/* Waits until all that was counted for the queue was submitted, or refused for good. An error: what is held stays. */
static int32_t settle(vkp_queue *q) {
    if (!q || forked) return SUCCESS;
    if (q->sending) {
        await_sender(q->sending, NULL);
        conclude(q->sending);
    }
    return settle_held(q);
}

/* Does a thread still submit to the queue? */
static int is_sending(vkp_queue *q) {
    if (!q->sending) return 0;
    sender *s = &q->sending->sender;
    pthread_mutex_lock(&s->lock);
    int busy = s->program != NULL;
    pthread_mutex_unlock(&s->lock);
    if (!busy) conclude(q->sending);
    return busy;
}

/* ---- a sender's life ---- */

static void make_sender(sender *s) {
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->sent, NULL);
}

/* Ends the thread. One that a driver keeps is not waited for, nor is it before the group is freed. */
static void stop_sender(sender *s) {
    pthread_mutex_lock(&s->lock);
    s->ends = 1;
    int idle = s->running && !s->program;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (!idle) return;
    pthread_join(s->thread, NULL);
    s->running = 0;
}

static void free_sender(sender *s) {
    if (s->running && !forked) pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->sent);
    pthread_mutex_destroy(&s->lock);
}

#endif
