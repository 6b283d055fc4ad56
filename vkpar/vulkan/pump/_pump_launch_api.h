/* What Python sees of _pump_launch.h and _pump_graph.h: read by the C compiler and by cffi, so there are no directives in it. */
typedef struct vkp_stream vkp_stream;
/* Of a binding: the bytes that it covers, how far before the given address it begins, and what is done to `used` of them from
 * `low` before that address on. */
typedef struct { uint64_t nbytes, used; uint32_t back, low, kind; } vkp_binding;
/* Bytes of a VkBuffer of a VkDevice, and what is done to them (see _pump_ledger.h). */
typedef struct { uint64_t device, buffer, start, end, kind; } vkp_touch;
/* Counts what is done to memory; how many programs' groups there are; how many ranges are lost. Read without a lock. */
typedef struct { uint64_t seq; uint32_t active, lost; } vkp_clock;
const vkp_clock *vkp_ledger_clock(void);
uint32_t vkp_ledger_lost(uint32_t n, const vkp_touch *);
uint32_t vkp_ledger_cause(void);
int32_t vkp_ledger_note(uint32_t n, const vkp_touch *);
void vkp_ledger_forget(uint64_t device);
void vkp_ledger_mend(uint32_t n, const vkp_touch *, uint64_t seq);
/* A dispatch that lacks nothing but addresses, and push constants where it has none of its own. One that `asks` does not
 * run as long as a failure has spoiled anything. */
typedef struct {
    uint64_t pipeline, layout, set_layout;
    uint32_t name, pushes, push_nbytes, bindings, groups[3], cost_ns, asks;
    uint8_t push[128];
    vkp_binding binding[];
} vkp_plan;
vkp_stream *vkp_stream_new(vkp_queue *, uint32_t family, int barriers, uint32_t rate, uint64_t wait_idle, const uint64_t *functions);
int32_t vkp_launch(vkp_stream *, const vkp_plan *, const char *addresses, const char *push);
int32_t vkp_copy(vkp_stream *, uint32_t name, uint32_t n, const char *parts);
int32_t vkp_fill(vkp_stream *, uint32_t name, uint32_t n, const char *parts, uint32_t word);
const uint64_t *vkp_queue_submitted_word(vkp_queue *);
int vkp_queue_sending(vkp_queue *);
int32_t vkp_stream_flush(vkp_stream *);
uint64_t vkp_stream_oldest(vkp_stream *);
uint32_t vkp_stream_unsent(vkp_stream *, uint32_t *names, uint32_t most, uint32_t *lost, uint32_t *failed);
void vkp_stream_stats(vkp_stream *, uint64_t *out);
void vkp_stream_refuse(vkp_stream *);
void vkp_stream_close(vkp_stream *, int leak);
void vkp_stream_free(vkp_stream *);
int32_t vkp_queue_idle(vkp_queue *, uint64_t wait_idle);
void vkp_stream_capture(vkp_stream *, int captures);
/* A trace: `stamps` has a row for each operation, with the queries around it; `sent` one for each submission of gathered
 * ones. Times are those of the host's monotonic clock, in ns. Where operations follow each other in a command buffer, the end
 * of one is the begin of the next. */
typedef struct { uint64_t at; uint32_t name, begin, end; } vkp_stamp;
typedef struct { uint64_t begun, ended, operations; } vkp_sent;
typedef struct {
    uint64_t pool, write;
    uint32_t room, used, queries, dropped, sent_room, sent_used;
    vkp_stamp *stamps;
    vkp_sent *sent;
} vkp_trace;
void vkp_stream_trace(vkp_stream *, vkp_trace *);
typedef struct vkp_recording vkp_recording;
vkp_recording *vkp_recording_new(vkp_stream *, int32_t *result);
int32_t vkp_recording_begin(vkp_recording *, uint64_t *commands);
int32_t vkp_recording_end(vkp_recording *);
void vkp_recording_strange(vkp_recording *);
int32_t vkp_recording_launch(vkp_recording *, const vkp_plan *, const char *addresses, const char *push);
int32_t vkp_recording_copy(vkp_recording *, uint32_t name, uint32_t n, const char *parts);
int32_t vkp_recording_fill(vkp_recording *, uint32_t name, uint32_t n, const char *parts, uint32_t word);
void vkp_recording_stats(vkp_recording *, uint64_t *out);
void vkp_recording_free(vkp_recording *);
