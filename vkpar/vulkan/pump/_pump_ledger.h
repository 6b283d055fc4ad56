/* The ledger: which bytes operations and programs read and wrote, as long as some program is pending, and which of them
 * a failure has spoiled. A failed program spoils all that it writes; what reads spoiled bytes spoils what it writes, and
 * what overwrites them mends them. Deeds are written down under the lock of all submissions, in its order; an abort, which
 * cannot wait for that, takes the ledger's own lock alone.
 */
#ifndef VKPAR_PUMP_LEDGER_H
#define VKPAR_PUMP_LEDGER_H

#include "_pump_record.h"
#include "_pump_types.h"

enum { LOST = 1005, LONG_WAY = 1006 };   /* what entries return: bytes that are read are lost; something is, look closer */

typedef struct { uint64_t seq; vkp_touch at; uint32_t cause; } loss;
typedef struct { loss *items; uint32_t n, capacity; int blind; } losses; /* blind: one found no room */
typedef struct { uint64_t seq, first; uint32_t n, group; } deed; /* group: number of the program's, 0 for an operation */

static struct {
    pthread_mutex_t lock;
    vkp_clock clock;
    losses lost;
    vkp_touch *touches;
    deed *deeds;
    uint64_t ntouches, touch_room, ndeeds, deed_room;
    vkp_group *groups;                   /* those whose programs may be pending */
    uint32_t numbers, cause;             /* cause: of the last refusal */
    uint32_t streams, doubtful;          /* that are open; of those, how many were when a loss found no room: as long as */
    uint64_t opened, doubt;              /* there are such, all is taken for lost. The stream that was the last one then */
} ledger = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int is_watched(void) {
    return __atomic_load_n(&ledger.clock.active, __ATOMIC_ACQUIRE) || __atomic_load_n(&ledger.clock.lost, __ATOMIC_ACQUIRE);
}

static int shares(const vkp_touch *a, const vkp_touch *b) {
    return a->buffer == b->buffer && a->device == b->device && a->start < b->end && b->start < a->end;
}

static int within(const vkp_touch *a, const vkp_touch *b) {
    return shares(a, b) && b->start <= a->start && a->end <= b->end;
}

static loss *append_loss(losses *to, loss item) {
    if (to->n == to->capacity) {
        uint32_t capacity = to->capacity ? 2 * to->capacity : 64;
        loss *more = realloc(to->items, capacity * sizeof *more);
        if (!more) { to->blind = 1; return NULL; }
        to->items = more;
        to->capacity = capacity;
    }
    to->items[to->n] = item;
    return &to->items[to->n++];
}

/* Takes the bytes out of what was lost before `seq`. */
static void mend(losses *from, const vkp_touch *at, uint64_t seq) {
    for (uint32_t i = 0; i < from->n;) {
        loss item = from->items[i];
        if (item.seq > seq || !shares(&item.at, at)) { i++; continue; }
        from->items[i] = from->items[--from->n];
        loss low = item, high = item;
        low.at.end = at->start;
        high.at.start = at->end;
        if (low.at.start < low.at.end) append_loss(from, low);
        if (high.at.start < high.at.end) append_loss(from, high);
    }
}

static const loss *find_loss(const losses *in, const vkp_touch *at) {
    for (uint32_t i = 0; i < in->n; i++)
        if (shares(&in->items[i].at, at)) return &in->items[i];
    return NULL;
}

/* The loss that a deed reads, which it did not replace itself before; NULL for none. */
static const loss *find_read(const losses *in, const vkp_touch *touches, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const loss *found = touches[i].kind <= UPDATES ? find_loss(in, &touches[i]) : NULL;
        for (uint32_t k = 0; k < i && found; k++)
            if (touches[k].kind == REPLACES && within(&touches[i], &touches[k])) found = NULL;
        if (found) return found;
    }
    return NULL;
}

/* What a deed changes of what is lost; `cause` is not 0 where it failed. */
static void follow(losses *in, const vkp_touch *touches, uint32_t n, uint64_t seq, uint32_t cause) {
    const loss *found = cause ? NULL : find_read(in, touches, n);
    if (found) cause = found->cause;
    for (uint32_t i = 0; i < n; i++) {
        const vkp_touch *t = &touches[i];
        if (!is_write(t->kind) || (!cause && t->kind != REPLACES)) continue;
        mend(in, t, seq);
        if (cause) append_loss(in, (loss){seq, *t, cause});
    }
}

static void count_losses(void) {
    if (ledger.lost.blind) {
        ledger.doubtful = ledger.streams;
        ledger.doubt = ledger.opened;
        ledger.lost.blind = 0;
    }
    if (!ledger.lost.n && !ledger.doubtful) ledger.cause = 0;
    __atomic_store_n(&ledger.clock.lost, ledger.lost.n + !!ledger.doubtful, __ATOMIC_RELEASE);
}

/* Counts a device's stream that opens, and returns its number; that of one which closes. */
static uint64_t count_stream(uint64_t closes) {
    pthread_mutex_lock(&ledger.lock);
    ledger.streams += closes ? -1 : 1;
    if (closes && closes <= ledger.doubt && ledger.doubtful) ledger.doubtful--;
    uint64_t number = closes ? closes : ++ledger.opened;
    count_losses();
    pthread_mutex_unlock(&ledger.lock);
    return number;
}

static vkp_group *group_of(uint32_t number) {
    vkp_group *g = ledger.groups;
    while (g && g->number != number) g = g->next;
    return g;
}

static uint64_t value_now(vkp_queue *q) {
    uint64_t now = 0;
    if (!q) return UINT64_MAX;           /* it was freed, all done */
    if (q->counter(q->device, q->timeline, &now) == SUCCESS && now > q->seen) q->seen = now;
    return q->seen;
}

static int is_pending(const deed *d) {
    vkp_group *g = d->group ? group_of(d->group) : NULL;
    for (uint32_t i = 0; g && !g->settled && i < d->n; i++) {
        const vkp_touch *t = &ledger.touches[d->first + i];
        if (t->kind == VALUE && value_now(g->queues[t->start]) < t->buffer) return 1;
    }
    return 0;
}

/* Forgets the oldest deeds up to the first program that is pending. */
static void forget_done(void) {
    uint64_t gone = 0;
    while (gone < ledger.ndeeds && !is_pending(&ledger.deeds[gone])) gone++;
    if (!gone) return;
    uint64_t first = gone < ledger.ndeeds ? ledger.deeds[gone].first : ledger.ntouches;
    ledger.ndeeds -= gone;
    ledger.ntouches -= first;
    memmove(ledger.deeds, ledger.deeds + gone, ledger.ndeeds * sizeof *ledger.deeds);
    memmove(ledger.touches, ledger.touches + first, ledger.ntouches * sizeof *ledger.touches);
    for (uint64_t i = 0; i < ledger.ndeeds; i++) ledger.deeds[i].first -= first;
}

static int grow(void **items, uint64_t *room, uint64_t wanted, size_t nbytes) {
    uint64_t more = *room ? *room : 1024;
    while (more < wanted) more *= 2;
    if (more == *room) return 1;
    void *made = realloc(*items, more * nbytes);
    if (!made) return 0;
    *items = made;
    *room = more;
    return 1;
}

/* Makes room for one more deed; false where there is no memory for it. Done ones go once half of the room is taken. */
static int expect(uint64_t n) {
    if (!is_watched()) return 1;
    pthread_mutex_lock(&ledger.lock);
    int fits = 1;
    if (ledger.ndeeds + 1 > ledger.deed_room || ledger.ntouches + n > ledger.touch_room) {
        forget_done();
        uint64_t deeds = ledger.ndeeds + 1, touches = ledger.ntouches + n;
        fits = grow((void **)&ledger.deeds, &ledger.deed_room, 2 * deeds, sizeof *ledger.deeds) &&
               grow((void **)&ledger.touches, &ledger.touch_room, 2 * touches, sizeof *ledger.touches);
    }
    pthread_mutex_unlock(&ledger.lock);
    return fits;
}

/* Why an operation may not run; 0 where it may. */
static int32_t objection(const vkp_touch *touches, uint32_t n, int asks) {
    if (!__atomic_load_n(&ledger.clock.lost, __ATOMIC_ACQUIRE)) return SUCCESS;
    if (asks) return LONG_WAY;
    pthread_mutex_lock(&ledger.lock);
    const loss *found = find_read(&ledger.lost, touches, n);
    int32_t result = found || ledger.doubtful ? LOST : SUCCESS;
    if (found) ledger.cause = found->cause;
    pthread_mutex_unlock(&ledger.lock);
    return result;
}

/* Writes a deed down, for which there is room, as it is appended to its queue or queues. */
static void write_down(const vkp_touch *touches, uint32_t n, uint32_t group) {
    if (!is_watched()) return;
    pthread_mutex_lock(&ledger.lock);
    uint64_t seq = __atomic_add_fetch(&ledger.clock.seq, 1, __ATOMIC_RELEASE);
    if (ledger.clock.lost) {
        follow(&ledger.lost, touches, n, seq, 0);
        count_losses();
    }
    if (ledger.clock.active && ledger.ndeeds < ledger.deed_room && ledger.ntouches + n <= ledger.touch_room) {
        ledger.deeds[ledger.ndeeds++] = (deed){seq, ledger.ntouches, n, group};
        memcpy(ledger.touches + ledger.ntouches, touches, n * sizeof *touches);
        ledger.ntouches += n;
    }
    pthread_mutex_unlock(&ledger.lock);
}

/* ---- groups ---- */

static void list_group(vkp_group *g) {
    pthread_mutex_lock(&ledger.lock);
    g->number = ++ledger.numbers;
    g->next = ledger.groups;
    ledger.groups = g;
    ledger.clock.active++;
    pthread_mutex_unlock(&ledger.lock);
}

static void unlist_group(vkp_group *g) {
    pthread_mutex_lock(&ledger.lock);
    vkp_group **at = &ledger.groups;
    while (*at && *at != g) at = &(*at)->next;
    if (*at) {
        *at = g->next;
        ledger.clock.active--;
    }
    g->settled = 1;                      /* its programs are done: from here on its queues may be freed unseen */
    pthread_mutex_unlock(&ledger.lock);
}

/* Takes back the deed that was written down last, the group's, of which nothing was submitted; not where it counts already:
 * something was lost, or the group's end has found what it spoils. */
static void take_back(const vkp_group *g) {
    pthread_mutex_lock(&ledger.lock);
    const deed *last = ledger.ndeeds ? &ledger.deeds[ledger.ndeeds - 1] : NULL;
    if (last && last->seq == ledger.clock.seq && last->group == g->number && !g->settled && !ledger.clock.lost) {
        ledger.ntouches = last->first;
        ledger.ndeeds--;
    }
    pthread_mutex_unlock(&ledger.lock);
}

/* Has the groups forget a queue that is being freed: nobody asks any more how far it is. */
static void forget_queue(const vkp_queue *q) {
    pthread_mutex_lock(&ledger.lock);
    for (vkp_group *g = ledger.groups; g; g = g->next)
        for (uint32_t r = 0; r < g->n; r++)
            if (g->queues[r] == q) g->queues[r] = NULL;
    pthread_mutex_unlock(&ledger.lock);
}

/* Notes how far the queues are before what was parked runs with undefined data; the group's lock is held. */
static void note_reached(vkp_group *g) {
    pthread_mutex_lock(&ledger.lock);
    for (uint32_t r = 0; r < g->n && !g->noted && !g->settled; r++) g->reached[r] = value_now(g->queues[r]);
    g->noted = 1;
    pthread_mutex_unlock(&ledger.lock);
}

/* Finds what the group's programs that are not done have spoiled, once. */
static void spoil(vkp_group *g) {
    losses found = {NULL, 0, 0, 0};
    pthread_mutex_lock(&ledger.lock);
    for (uint64_t i = 0; i < ledger.ndeeds && !g->settled; i++) {
        const deed *d = &ledger.deeds[i];
        const vkp_touch *touches = ledger.touches + d->first;
        int failed = 0;
        for (uint32_t k = 0; k < d->n && d->group == g->number; k++)
            failed |= touches[k].kind == VALUE && g->reached[touches[k].start] < touches[k].buffer;
        if (failed || found.n) follow(&found, touches, d->n, d->seq, failed ? g->number : 0);
    }
    for (uint32_t i = 0; i < found.n; i++) append_loss(&ledger.lost, found.items[i]);
    ledger.lost.blind |= found.blind;
    free(found.items);
    g->settled = 1;
    count_losses();
    pthread_mutex_unlock(&ledger.lock);
}

/* ---- for Python ---- */

const vkp_clock *vkp_ledger_clock(void) { return &ledger.clock; }

/* The cause of some bytes' loss, 0 where none of them is lost. */
uint32_t vkp_ledger_lost(uint32_t n, const vkp_touch *touches) {
    pthread_mutex_lock(&ledger.lock);
    const loss *found = find_read(&ledger.lost, touches, n);
    uint32_t cause = found ? found->cause : ledger.doubtful ? UINT32_MAX : 0;
    pthread_mutex_unlock(&ledger.lock);
    return cause;
}

/* The cause of the last refusal. */
uint32_t vkp_ledger_cause(void) {
    pthread_mutex_lock(&ledger.lock);
    uint32_t cause = ledger.cause;
    pthread_mutex_unlock(&ledger.lock);
    return cause;
}

/* Writes down what others than the streams did. */
int32_t vkp_ledger_note(uint32_t n, const vkp_touch *touches) {
    pthread_mutex_lock(&entry);
    int32_t result = expect(n) ? SUCCESS : OUT_OF_HOST_MEMORY;
    if (result == SUCCESS) write_down(touches, n, 0);
    pthread_mutex_unlock(&entry);
    return result;
}

/* Mends bytes that belong to somebody new since `seq`. */
void vkp_ledger_mend(uint32_t n, const vkp_touch *touches, uint64_t seq) {
    pthread_mutex_lock(&ledger.lock);
    for (uint32_t i = 0; i < n; i++) mend(&ledger.lost, &touches[i], seq);
    count_losses();
    pthread_mutex_unlock(&ledger.lock);
}

/* Forgets what was lost of a device that is gone. */
void vkp_ledger_forget(uint64_t device) {
    pthread_mutex_lock(&ledger.lock);
    for (uint32_t i = 0; i < ledger.lost.n;)
        if (ledger.lost.items[i].at.device == device) ledger.lost.items[i] = ledger.lost.items[--ledger.lost.n];
        else i++;
    count_losses();
    pthread_mutex_unlock(&ledger.lock);
}

#endif
