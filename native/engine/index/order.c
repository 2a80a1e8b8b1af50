/* Placing similar codes next to each other.
 *
 * Both plans are faster if similar codes are close in memory. The sweep leaves a block once all of its 64 sums exceed
 * the limit, and similar codes exceed it together. With compact buckets, the probe looks up the code of each row of a
 * bucket, and these rows are then close to each other.
 *
 * The codes are split on single bits, as in a k-d tree. A node is a range of codes. Among the bits that divide a node
 * most evenly, the one that predicts the other bits best is chosen. This is the bit with the largest sum of squared
 * covariances with the other bits, divided by its own variance; both are estimated from a sample. The codes in which
 * this bit is 0 are moved before those in which it is 1. Both halves are split in the same way, until a node is no
 * larger than a leaf.
 *
 *            bit 17                     codes: | 17=0,3=0 | 17=0,3=1 | 17=1,40=0 | 17=1,40=1 |
 *           0/    \1                                        \________/
 *        bit 3   bit 40                                      a block
 */
#include "index/order.h"

#include "index/arrays.h"
#include "base/memory.h"
#include "base/parallel.h"

enum {
    /* Nodes of at most this many codes are not split. Smaller than a block, because a block may begin within a node. */
    LEAF = 32,
    /* Nodes of at least this many codes are large: their bits are chosen with more care (see the next three constants),
     * because there are few of them and their splits matter most. */
    LARGE = 4096,
    SAMPLE = 256,    /* codes in the sample */
    CHOICES = 24,    /* bits to choose from: those that divide the node most evenly */
    WITNESSES = 128, /* bits, evenly spaced, to compute covariances with; rounding may nearly double their number */
    /* The same constants for nodes that are not large. */
    SMALL_SAMPLE = 64,
    SMALL_CHOICES = 8,
    SMALL_WITNESSES = 64,
    /* Size of the stack. The smaller half is popped first, so the stack never has more than log2(n) nodes. */
    DEPTH = 64
};

struct node {
    size_t first, count;
};

/* Scratch memory of one thread. */
struct scratch {
    uint64_t column[WH_MAX_BITS][SAMPLE / 64]; /* the sample, transposed: one column per bit */
    uint16_t ones[WH_MAX_BITS];
    uint8_t swap[WH_MAX_BITS / 8];
};

struct ordering {
    uint8_t *codes;
    uint32_t *rows;
    uint32_t bits;
    size_t code_bytes;
    struct node *nodes;
    struct scratch *scratch; /* per thread */
    volatile uint32_t *progress;
    uint32_t from, to; /* range of the progress */
    volatile uint32_t *cancel;
    _Atomic size_t done;
    size_t n;
};

/* Population count in plain C; not every machine has an instruction for it. */
static uint32_t count_ones(uint64_t x) {
    x -= x >> 1 & UINT64_C(0x5555555555555555);
    x = (x & UINT64_C(0x3333333333333333)) + (x >> 2 & UINT64_C(0x3333333333333333));
    x = (x + (x >> 4)) & UINT64_C(0x0F0F0F0F0F0F0F0F);
    return (uint32_t)(x * UINT64_C(0x0101010101010101) >> 56);
}

/* Transpose a 64 x 64 matrix of bits in place (recursive block swaps). */
static void transpose64(uint64_t a[64]) {
    uint64_t mask = UINT64_C(0x00000000FFFFFFFF);
    for (int width = 32; width; width >>= 1, mask ^= mask << width) {
        for (int k = 0; k < 64; k = ((k | width) + 1) & ~width) {
            uint64_t t = ((a[k] >> width) ^ a[k | width]) & mask;
            a[k] ^= t << width;
            a[k | width] ^= t;
        }
    }
}

static void sample_columns(const struct ordering *o, struct node node, size_t count, struct scratch *s) {
    size_t words = (o->code_bytes + 7) / 8, groups = (count + 63) / 64;
    for (size_t g = 0; g < groups; g++) {
        for (size_t w = 0; w < words; w++) {
            uint64_t matrix[64] = {0};
            size_t tail = o->code_bytes - 8 * w;
            for (size_t j = 0; j < 64 && g * 64 + j < count; j++) {
                size_t row = node.first + (g * 64 + j) * node.count / count;
                memcpy(&matrix[j], o->codes + row * o->code_bytes + 8 * w, tail < 8 ? tail : 8);
            }
            transpose64(matrix);
            for (size_t i = 0; i < 64 && w * 64 + i < o->bits; i++) s->column[w * 64 + i][g] = matrix[i];
        }
    }
    for (uint32_t i = 0; i < o->bits; i++) {
        uint32_t ones = 0;
        for (size_t g = 0; g < groups; g++) ones += count_ones(s->column[i][g]);
        s->ones[i] = (uint16_t)ones;
    }
}

/* The bit to split a node on; -1 if all codes of the sample are equal. */
static int choose_bit(const struct ordering *o, struct node node, struct scratch *s) {
    int large = node.count >= LARGE;
    size_t sample = large ? SAMPLE : SMALL_SAMPLE, count = node.count < sample ? node.count : sample;
    size_t groups = (count + 63) / 64, most = large ? CHOICES : SMALL_CHOICES;
    uint32_t witnesses = large ? WITNESSES : SMALL_WITNESSES;
    sample_columns(o, node, count, s);

    uint32_t choice[CHOICES], unevenness[CHOICES];
    size_t choices = 0;
    for (uint32_t i = 0; i < o->bits; i++) { /* keep those that divide most evenly, in order */
        uint32_t ones = s->ones[i];
        if (ones == 0 || ones == count) continue;
        uint32_t uneven = (uint32_t)(2 * ones > count ? 2 * ones - count : count - 2 * ones);
        if (choices == most && uneven >= unevenness[most - 1]) continue;
        size_t at = choices < most ? choices++ : most - 1;
        for (; at > 0 && unevenness[at - 1] > uneven; at--) {
            choice[at] = choice[at - 1];
            unevenness[at] = unevenness[at - 1];
        }
        choice[at] = i;
        unevenness[at] = uneven;
    }
    if (choices == 0) return -1;

    int best = -1;
    double best_score = -1;
    uint32_t step = o->bits > witnesses ? o->bits / witnesses : 1;
    for (size_t c = 0; c < choices; c++) {
        if (unevenness[c] * 5 > count * 3 && best >= 0) break; /* worse than 20 : 80 */
        double p = s->ones[choice[c]] / (double)count, score = 0;
        for (uint32_t j = 0; j < o->bits; j += step) {
            uint32_t both = 0;
            for (size_t g = 0; g < groups; g++) both += count_ones(s->column[choice[c]][g] & s->column[j][g]);
            double covariance = both / (double)count - p * s->ones[j] / (double)count;
            score += covariance * covariance;
        }
        score /= p * (1 - p);
        if (score > best_score) {
            best_score = score;
            best = (int)choice[c];
        }
    }
    return best;
}

static int bit_at(const struct ordering *o, size_t row, int bit) {
    return o->codes[row * o->code_bytes + ((size_t)bit >> 3)] >> (bit & 7) & 1;
}

static void swap_rows(const struct ordering *o, size_t i, size_t j, struct scratch *s) {
    uint8_t *a = o->codes + i * o->code_bytes, *b = o->codes + j * o->code_bytes;
    memcpy(s->swap, a, o->code_bytes);
    memcpy(a, b, o->code_bytes);
    memcpy(b, s->swap, o->code_bytes);
    uint32_t row = o->rows[i];
    o->rows[i] = o->rows[j];
    o->rows[j] = row;
}

/* Choose a bit, and move the codes in which it is 0 before those in which it is 1. Returns the number of codes in which
 * it is 0. Returns 0 if the node cannot be split. */
static size_t split(const struct ordering *o, struct node node, struct scratch *s) {
    int bit = choose_bit(o, node, s);
    if (bit < 0) return 0;
    size_t low = node.first, high = node.first + node.count;
    for (;;) {
        while (low < high && !bit_at(o, low, bit)) low++;
        while (low < high && bit_at(o, high - 1, bit)) high--;
        if (low >= high) break;
        swap_rows(o, low, high - 1, s);
    }
    return low - node.first; /* the sample had both values, so neither half is empty */
}

static void order_node(void *context, size_t i, uint32_t worker) {
    struct ordering *o = context;
    struct scratch *s = &o->scratch[worker];
    struct node stack[DEPTH];
    size_t depth = 0;
    stack[depth++] = o->nodes[i];
    while (depth && !is_cancelled(o->cancel)) {
        struct node node = stack[--depth];
        size_t zeros = node.count > LEAF ? split(o, node, s) : 0;
        if (zeros == 0) {
            size_t done = atomic_fetch_add(&o->done, node.count) + node.count;
            progress_report(o->progress, o->from + (uint32_t)(done * (o->to - o->from) / o->n));
            continue;
        }
        struct node low = {node.first, zeros}, high = {node.first + zeros, node.count - zeros};
        stack[depth++] = zeros < node.count - zeros ? high : low; /* larger half first: the stack stays short */
        stack[depth++] = zeros < node.count - zeros ? low : high;
    }
}

int order_codes(uint8_t *codes, uint32_t *rows, size_t n, uint32_t bits, uint32_t threads, volatile uint32_t *progress,
                uint32_t from, uint32_t to, volatile uint32_t *cancel) {
    enum { MAX_NODES = 1024 }; /* a pass starts with fewer than 8 x 64 = 512 nodes and at most doubles them */
    if (threads < 1) threads = 1;
    if (threads > MAX_NODES / 16) threads = MAX_NODES / 16;
    struct ordering o = {.codes = codes,
                         .rows = rows,
                         .bits = bits,
                         .code_bytes = code_bytes_of(bits),
                         .nodes = wh_malloc(sizeof *o.nodes * MAX_NODES),
                         .scratch = wh_malloc(sizeof *o.scratch * threads),
                         .progress = progress,
                         .from = from,
                         .to = to,
                         .cancel = cancel,
                         .n = n};
    int status = o.nodes && o.scratch ? WH_OK : WH_MEMORY;
    if (status == WH_OK && n > 0) {
        /* Split breadth first until there are enough nodes for all threads. */
        size_t count = 1, wanted = threads == 1 ? 1 : (size_t)threads * 8;
        o.nodes[0] = (struct node){0, n};
        for (size_t before = 0; before < count && count < wanted;) {
            before = count;
            for (size_t i = 0; i < before && !is_cancelled(cancel); i++) {
                struct node node = o.nodes[i];
                size_t zeros = node.count > LEAF ? split(&o, node, &o.scratch[0]) : 0;
                if (zeros == 0) continue;
                o.nodes[i] = (struct node){node.first, zeros};
                o.nodes[count++] = (struct node){node.first + zeros, node.count - zeros};
            }
        }
        parallel_run(threads, count, order_node, &o);
    }
    wh_free(o.nodes);
    wh_free(o.scratch);
    return status == WH_OK && is_cancelled(cancel) ? WH_STOPPED : status;
}
