/* The first threshold of a sweep, from a sample. See sweep.h.
 *
 * The threshold has to be at least the sum of the want-th best code. A sample of the blocks, at equal distances, is
 * searched for its lowest sums. The threshold becomes the rank-th lowest of them. If the sample has a share x of the
 * blocks, it is expected to have x * want of the best codes. `rank` is larger than that by some standard deviations.
 *
 * Similar codes are neighbours in the index, so the best codes may all be in a few blocks, and the sample may happen to
 * have one of these. Therefore a block contributes only its lowest sum, or few if `want` is large compared with the
 * number of blocks. The threshold only decides how long a sweep takes: if it is too low, there is another pass.
 */
#include "search/sweep.h"

#include <math.h>

enum {
    MIN_BLOCKS = 128, /* smaller indexes are swept without a sample */
    SHARE = 32,       /* one in this many blocks is sampled, ... */
    FEWEST = 32,      /* ... but at least FEWEST, */
    ENOUGH = 256,     /* and no more than ENOUGH, unless one in LARGE_SHARE is more than that */
    LARGE_SHARE = 128,
    LARGEST_SHARE = 4, /* larger samples take too long */
    MAX_RANK = 1024    /* larger ranks, too */
};

struct sample {
    size_t size;      /* number of blocks in the sample */
    size_t per_block; /* each contributes up to this many sums */
    size_t rank;      /* 0: sampling would not pay */
};

static struct sample plan_sample(size_t blocks, size_t want) {
    size_t most = blocks / LARGE_SHARE > ENOUGH ? blocks / LARGE_SHARE : ENOUGH, size = blocks / SHARE;
    size = size < FEWEST ? FEWEST : size > most ? most : size;
    struct sample sample = {0, 1 + 4 * want / blocks, 0};
    for (; size <= blocks / LARGEST_SHARE; size *= 2) {
        double expected = (double)want * (double)size / (double)blocks;
        double rank = expected + 4 * sqrt(expected * (double)(1 + sample.per_block) / 2) + 2.5;
        if (rank > MAX_RANK) break;
        sample.size = size;
        sample.rank = (size_t)rank;
        if (sample.rank <= size * sample.per_block / 2) return sample;
    }
    sample.rank = 0;
    return sample;
}

/* Insert a sum into an ascending array of `count` sums. */
static void insert(uint16_t *sums, size_t count, uint16_t sum) {
    size_t at = count;
    for (; at > 0 && sums[at - 1] > sum; at--) sums[at] = sums[at - 1];
    sums[at] = sum;
}

void sweep_sample(struct sweep *s) {
    const size_t blocks = s->index->blocks_count - 1; /* without the last one, which may be padded */
    if (blocks < MIN_BLOCKS) return;
    const struct sample sample = plan_sample(blocks, s->want);
    if (sample.rank == 0) return;
    const size_t stride = blocks / sample.size, block_bytes = s->index->block_bytes;
    uint16_t lowest[MAX_RANK + 1], threshold = s->threshold;
    size_t count = 0;
    for (size_t block = stride / 2, i = 0; i < sample.size; i++, block += stride) {
        const uint8_t *next = s->index->codes + (i + 1 < sample.size ? block + stride : block) * block_bytes;
        for (size_t at = 0; at < block_bytes; at += 64) __builtin_prefetch(next + at);
        struct sweep_job job = sweep_job(s, SWEEP_STREAM, block, block + 1);
        job.threshold = threshold;
        s->kernels->sweep(&job);
        s->counts.planes += job.planes_read;
        uint16_t own[WH_BLOCK_CODES + 1];
        size_t owns = 0;
        for (size_t j = 0; j < job.count; j++) {
            if (s->sums[j] < s->least) continue;
            insert(own, owns, s->sums[j]);
            if (owns < sample.per_block) owns++;
        }
        for (size_t j = 0; j < owns; j++) {
            insert(lowest, count, own[j]);
            if (count < sample.rank) count++;
        }
        if (count == sample.rank && lowest[count - 1] < threshold) threshold = lowest[count - 1];
    }
    s->sampled = threshold < s->threshold;
    s->threshold = threshold;
}
