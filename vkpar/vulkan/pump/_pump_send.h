/* Sending: a program's batches go to the drivers. Where they are many, the first ones of every rank go ahead of the
 * others, as a driver takes about a microsecond a batch and the devices work meanwhile; and a thread for each rank but
 * the first submits the others at the same time.
 */
#ifndef VKPAR_PUMP_SEND_H
#define VKPAR_PUMP_SEND_H

#include "_pump_types.h"

enum { AHEAD = 8 };                      /* batches of a rank that go ahead where there are more than twice as many */

static void set_last(vkp_queue *q, uint64_t value) {
    __atomic_store_n(&q->submitted, value, __ATOMIC_RELEASE);
    __atomic_store_n(&q->last, value, __ATOMIC_RELEASE);
}

static uint32_t batches_of(const vkp_program *p, uint32_t rank) { return p->first[rank + 1] - p->first[rank]; }

static uint32_t ahead_of(const vkp_program *p, uint32_t rank) {
    uint32_t count = batches_of(p, rank);
    return count > 2 * AHEAD ? AHEAD : count;
}

/* Submits the batches from `begin` to `end` of a rank's. */
static int32_t submit_part(vkp_program *p, uint32_t rank, uint32_t begin, uint32_t end) {
    vkp_queue *q = p->group->queues[rank];
    uint32_t first = p->first[rank];
    if (begin == end) return SUCCESS;
    int32_t result = q->submit(q->queue, end - begin, p->submits + first + begin, 0);
    if (result == SUCCESS) set_last(q, p->signal_values[first + end - 1]);
    return result;
}

static int32_t submit_rest(vkp_program *p, uint32_t rank) {
    return submit_part(p, rank, ahead_of(p, rank), batches_of(p, rank));
}

/* ---- a rank's thread ---- */

static void *send(void *argument) {
    sender *s = argument;
    vkp_group *g = s->group;
    pthread_mutex_lock(&g->sending);
    for (;;) {                           /* what was handed over before the end is submitted: somebody waits for it */
        if (s->program) {
            vkp_program *p = s->program;
            pthread_mutex_unlock(&g->sending);
            int32_t result = submit_rest(p, s->rank);
            pthread_mutex_lock(&g->sending);
            s->result = result;
            s->program = NULL;
            pthread_cond_signal(&g->sent);
        } else if (g->sends_no_more) {
            break;
        } else {
            pthread_cond_wait(&s->wake, &g->sending);
        }
    }
    pthread_mutex_unlock(&g->sending);
    return NULL;
}

/* False where the rank has no thread and none can be started. */
static int hand_over(vkp_program *p, uint32_t rank) {
    vkp_group *g = p->group;
    sender *s = &g->senders[rank];
    pthread_mutex_lock(&g->sending);
    int takes = !g->sends_no_more;
    if (takes && !s->running) takes = s->running = !pthread_create(&s->thread, NULL, send, s);
    if (takes) {
        s->program = p;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&g->sending);
    return takes;
}

static int32_t await(vkp_group *g, uint32_t rank) {
    sender *s = &g->senders[rank];
    pthread_mutex_lock(&g->sending);
    while (s->program) pthread_cond_wait(&g->sent, &g->sending);
    pthread_mutex_unlock(&g->sending);
    return s->result;
}

/* ---- all ranks ---- */

/* Submits what does not go ahead; a queue takes one call at a time, so ranks that share one go one after the other. */
static int32_t submit_others(vkp_program *p, uint32_t *failed) {
    vkp_group *g = p->group;
    int handed[g->n];
    int32_t result = SUCCESS;
    for (uint32_t r = 0; r < g->n; r++)
        handed[r] = r && g->apart && batches_of(p, r) > ahead_of(p, r) && hand_over(p, r);
    for (uint32_t r = 0; r < g->n; r++) {
        int32_t own = handed[r] ? await(g, r) : result == SUCCESS ? submit_rest(p, r) : SUCCESS;
        if (own != SUCCESS && result == SUCCESS) *failed = r;
        if (result == SUCCESS) result = own;
    }
    return result;
}

/* Submits all that was built. *failed is the first rank that did not get all. */
static int32_t submit_all(vkp_program *p, uint32_t *failed) {
    for (uint32_t r = 0; r < p->group->n; r++) {
        int32_t result = submit_part(p, r, 0, ahead_of(p, r));
        if (result == SUCCESS) continue;
        *failed = r;
        return result;
    }
    return submit_others(p, failed);
}

static int make_senders(vkp_group *g) {
    g->senders = calloc(g->n, sizeof *g->senders);
    if (!g->senders) return 0;
    pthread_mutex_init(&g->sending, NULL);
    pthread_cond_init(&g->sent, NULL);
    g->apart = 1;
    for (uint32_t r = 0; r < g->n; r++) {
        g->senders[r].group = g;
        g->senders[r].rank = r;
        pthread_cond_init(&g->senders[r].wake, NULL);
        for (uint32_t other = 0; other < r; other++) g->apart &= g->queues[other]->queue != g->queues[r]->queue;
    }
    return 1;
}

/* Ends the threads. One that a driver keeps is not waited for, nor is it before the group is freed. */
static void stop_senders(vkp_group *g) {
    int idle[g->n];
    pthread_mutex_lock(&g->sending);
    g->sends_no_more = 1;
    for (uint32_t r = 0; r < g->n; r++) {
        idle[r] = g->senders[r].running && !g->senders[r].program;
        pthread_cond_signal(&g->senders[r].wake);
    }
    pthread_mutex_unlock(&g->sending);
    for (uint32_t r = 0; r < g->n; r++)
        if (idle[r]) {
            pthread_join(g->senders[r].thread, NULL);
            g->senders[r].running = 0;
        }
}

static void free_senders(vkp_group *g) {
    if (!g->senders) return;
    for (uint32_t r = 0; r < g->n; r++) {
        if (g->senders[r].running) pthread_join(g->senders[r].thread, NULL);
        pthread_cond_destroy(&g->senders[r].wake);
    }
    pthread_cond_destroy(&g->sent);
    pthread_mutex_destroy(&g->sending);
    free(g->senders);
}

#endif
