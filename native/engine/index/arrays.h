#ifndef WHAMMING_ARRAYS_H
#define WHAMMING_ARRAYS_H
/* The flat arrays of an index, and the index opened over them.
 *
 * All integers are little-endian and may be unaligned. There are n codes of b bits, each B = ceil(b / 8) bytes long.
 * The codes are stored in r rows. If many codes are equal, they share a row, and the rows are the distinct codes.
 * Otherwise each row has one code, and r = n. There are m tables.
 *
 * Numbers below or equal to n take W bytes each, as few as n needs. Ids take as few bytes as the largest one needs. After
 * an array of such numbers, unless it is empty, there are 8 zero bytes, so that 8-byte loads never leave the array.
 *
 *   META       struct meta, then uint16 frequency[b]: fraction of ones per bit, in units of 1 / 65535, estimated from
 *              up to 65,536 rows
 *   CODES      the codes in a layout for SIMD: blocks of 64 codes; a block has Q = ceil(B / 4) quads of 256 bytes, each
 *              with 4 bytes of every code; a quad has 4 cells of 64 bytes, each with these bytes of 16 codes: first byte 0
 *              of each code, then byte 1, and so on. If B is no multiple of 4, codes are padded with zero bytes, and the
 *              last block is padded with zero codes. Byte i of a block's code j is at 256 (i / 4) + 64 (j / 16) +
 *              16 (i % 4) + j % 16
 *
 *                block 0                                         block 1
 *              | quad 0: bytes 0 to 3      | quad 1 | ... | Q - 1 | quad 0 | ...
 *              | cell 0, codes 0 to 15 | 1 | 2 | 3 |
 *
 *   IDS        id_bytes (0 to 8) per code, row by row, increasing within a row; 0: each id equals its row
 *   GROUPS     W bytes start[r + 1]: row i has the ids at places start[i] .. start[i + 1] - 1; empty if r = n
 *   DIRECTORY  see "Buckets" below
 *   POSTINGS   W bytes row x (m x r). Multi: by table, then by bucket. Single: by bucket, then by table. Rows increase
 *              within a bucket of a table
 *   ENTRIES    fast buckets: B bytes x (m x r), the code of the posting at the same position, then 8 zero bytes
 *
 * Substrings. The first c (`covered`) bits of the code are cut into m substrings of consecutive bits. The first (c mod
 * m) substrings have ceil(c / m) bits, the others floor(c / m). The value of a substring is its key; the substring's
 * first bit is the key's lowest bit.
 *
 * Buckets. A key of at most directory_bits bits is its own bucket number. A longer key is hashed to directory_bits
 * bits, so that no table needs a directory of 2^32 entries. Different keys may then share a bucket. A search compares
 * all rows of a bucket, but accepts only rows that have the probed key. A directory has 2^d buckets, where d is the
 * smaller of directory_bits and the length of the directory's longest key. It says where the postings of table t in
 * bucket i start and end:
 *
 *   multi, per table:     uint32 offset[2^d + 1]: t x r + [offset[i], offset[i + 1])
 *   single, wide:         uint32 offset[2^d x m + 1]: [offset[i x m + t], offset[i x m + t + 1])
 *   single, narrow:       per bucket uint32 base, uint16 end[m], padded to 4 bytes: base + [end[t - 1], end[t]), where
 *                         end[-1] = 0
 *
 * The single layout is that of the paper's section IV.B: one directory for all substrings. Unlike in the paper, each
 * bucket groups its postings by table, so that a probe for table t finds only rows whose t-th substring is the key.
 */
#include "whamming.h"

#include <stddef.h>
#include <string.h>

enum {
    CELL_CODES = 16,
    CELL_BYTES = 64,
    QUAD_BYTES = 256,
    CODE_ROOM = WH_MAX_BITS / 8 + 8 /* for a copied code, and what substring_key reads after it */
};

struct meta {
    char magic[4]; /* "WHAM" */
    uint32_t format;
    uint64_t n;
    uint64_t rows;
    uint32_t bits;
    uint32_t tables;
    uint32_t covered; /* the substrings are cut from the first `covered` bits */
    uint32_t layout;
    uint32_t buckets;
    uint32_t reordered;
    uint32_t id_bytes;
    uint32_t directory_bits;
    uint32_t narrow; /* 1: the single directory has the narrow form */
    uint32_t check;  /* meta_check() of the whole META array */
};

/* The substring of one table. */
struct substring {
    uint32_t first; /* bit number */
    uint32_t length;
    uint32_t directory_bits; /* length of this table's bucket numbers */
    uint64_t directory;      /* byte offset of this table's bucket 0 in DIRECTORY */
};

struct wh_index {
    struct meta meta;
    size_t code_bytes;  /* B */
    size_t block_bytes; /* 256 x Q */
    size_t planes;      /* ceil(b / 4): sums of costs are looked up per plane of 4 bits */
    size_t blocks_count;
    size_t record_bytes; /* bytes per bucket in DIRECTORY */
    const uint8_t *codes;
    const uint8_t *ids;
    const uint8_t *groups; /* NULL if every row has one id */
    uint32_t place_bytes;  /* W */
    uint64_t place_mask;   /* the bits of a number of W bytes */
    uint64_t id_mask;      /* the bits of an id */
    const uint8_t *directory;
    const uint8_t *postings;
    const uint8_t *entries;
    uint16_t *frequency;         /* per bit, from META */
    struct substring *substring; /* per table */
};

static inline uint16_t load16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline size_t code_bytes_of(uint32_t bits) { return (bits + 7u) / 8; }
static inline size_t planes_of(uint32_t bits) { return (bits + 3u) / 4; }
static inline size_t quads_of(uint32_t bits) { return (bits + 31u) / 32; }

/* The first byte of a row's code; quads are QUAD_BYTES apart, and bytes of a quad CELL_CODES. */
static inline const uint8_t *code_address(const wh_index *index, uint64_t row) {
    uint64_t block = row / WH_BLOCK_CODES, cell = row % WH_BLOCK_CODES / CELL_CODES;
    return index->codes + block * index->block_bytes + cell * CELL_BYTES + row % CELL_CODES;
}

/* Prefetch the code of a row. */
static inline void fetch_code(const wh_index *index, uint64_t row) {
    const uint8_t *code = code_address(index, row);
    for (size_t at = 0; at < index->block_bytes; at += QUAD_BYTES) __builtin_prefetch(code + at);
}

/* Four bytes of a code. */
static inline uint64_t load_quad(const uint8_t *p) {
    return (uint64_t)(p[0] | p[CELL_CODES] << 8 | p[2 * CELL_CODES] << 16) | (uint64_t)p[3 * CELL_CODES] << 24;
}

/* Copy the code of a row. Writes up to 7 zero bytes after it. */
static inline void copy_code(const wh_index *index, uint64_t row, uint8_t *out) {
    const uint8_t *quad = code_address(index, row), *end = quad + index->block_bytes;
    for (; quad + QUAD_BYTES < end; quad += 2 * QUAD_BYTES, out += 8) {
        uint64_t word = load_quad(quad) | load_quad(quad + QUAD_BYTES) << 32;
        memcpy(out, &word, 8);
    }
    if (quad >= end) return;
    uint64_t word = load_quad(quad);
    memcpy(out, &word, 8);
}

/* The key of a code's substring. Reads 8 bytes, starting at the substring's first byte. This is enough: a substring of
 * up to 32 bits that starts within a byte spans at most 39 bits. */
static inline uint32_t substring_key(const uint8_t *code, const struct substring *s) {
    uint64_t word = load64(code + (s->first >> 3)) >> (s->first & 7);
    return (uint32_t)(word & ((UINT64_C(1) << s->length) - 1));
}

/* The bucket number of a key: the key itself, or its hash if the key is longer than directory_bits. */
static inline uint32_t bucket_of(uint32_t key, const struct substring *s) {
    if (s->length <= s->directory_bits) return key;
    return (key * UINT32_C(2654435769)) >> (32 - s->directory_bits);
}

/* How many bytes a number needs, at least 1. */
static inline uint32_t bytes_of_number(uint64_t number) {
    uint32_t bytes = 1;
    while (bytes < 8 && number >> 8 * bytes) bytes++;
    return bytes;
}

/* The bits of a number of this many bytes, 0 to 8. */
static inline uint64_t mask_of_bytes(uint32_t bytes) { return bytes < 8 ? (UINT64_C(1) << 8 * bytes) - 1 : UINT64_MAX; }

/* Write a number of this many bytes, 1 to 8. */
static inline void store_number(uint8_t *p, uint32_t bytes, uint64_t number) {
    for (uint32_t i = 0; i < bytes; i++) p[i] = (uint8_t)(number >> 8 * i);
}

/* Compute the substrings (see above) and the offsets of their directories. */
void substrings_fill(struct substring *substring, const struct meta *meta);

/* Bytes per bucket in the narrow directory. */
static inline size_t narrow_record_bytes(uint32_t tables) { return 4 + (2 * (size_t)tables + 3) / 4 * 4; }

/* Bytes in DIRECTORY from one bucket of a table to the next. */
static inline size_t record_bytes_of(const struct meta *meta) {
    if (meta->narrow) return narrow_record_bytes(meta->tables);
    return meta->layout == WH_SINGLE ? 4 * (size_t)meta->tables : 4;
}

/* A checksum of META, computed as if `check` were 0. META has a checksum because every search depends on all of its
 * fields. */
uint32_t meta_check(const uint8_t *meta, size_t size);

/* The exact size of each array in bytes. Building and opening an index use it. */
void arrays_sizes(const struct meta *meta, uint64_t size[WH_ARRAYS]);

/* The address of the id at a place. Not for id_bytes = 0. */
static inline const uint8_t *id_address(const wh_index *index, uint64_t place) {
    return index->ids + place * index->meta.id_bytes;
}

static inline uint64_t id_at(const wh_index *index, uint64_t place) {
    return index->meta.id_bytes ? load64(id_address(index, place)) & index->id_mask : place;
}

/* The place of the first id of a row. Needs index->groups. For row = r: n. */
static inline const uint8_t *group_address(const wh_index *index, uint64_t row) {
    return index->groups + row * index->place_bytes;
}
static inline uint64_t group_at(const wh_index *index, uint64_t row) {
    return load64(group_address(index, row)) & index->place_mask;
}

static inline const uint8_t *posting_address(const wh_index *index, uint64_t position) {
    return index->postings + position * index->place_bytes;
}
static inline uint32_t posting_at(const wh_index *index, uint64_t position) {
    return (uint32_t)(load64(posting_address(index, position)) & index->place_mask);
}

/* The address of a bucket of table t in the directory. */
static inline const uint8_t *bucket_place(const wh_index *index, uint32_t t, uint32_t bucket) {
    return index->directory + index->substring[t].directory + (uint64_t)bucket * index->record_bytes;
}

/* The postings of a bucket of table t: positions [*start, *stop) in POSTINGS and ENTRIES. Returns 0 if the directory is
 * corrupt. */
static inline int bucket_range(const wh_index *index, uint32_t t, uint32_t bucket, uint64_t *start, uint64_t *stop) {
    const uint8_t *place = bucket_place(index, t, bucket);
    uint64_t low, high;
    if (index->meta.narrow) {
        uint64_t base = load32(place);
        low = base + (t ? load16(place + 4 + 2 * (size_t)(t - 1)) : 0);
        high = base + load16(place + 4 + 2 * (size_t)t);
    } else {
        uint64_t base = index->meta.layout == WH_MULTI ? t * index->meta.rows : 0;
        low = base + load32(place);
        high = base + load32(place + 4);
    }
    *start = low;
    *stop = high;
    return low <= high && high <= index->meta.rows * index->meta.tables;
}

#endif
