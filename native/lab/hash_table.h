#ifndef WHAMMING_LAB_HASH_TABLE_H
#define WHAMMING_LAB_HASH_TABLE_H
/* The index as the searches read it. hash_table.c builds it; the top of that file has a drawing. */
#include "lab.h"

struct lab_table {
    uint32_t *starts;   /* bucket `key` is postings[starts[key]] .. postings[starts[key + 1] - 1] */
    uint32_t *postings; /* rows, ascending within a bucket */
};

struct lab_index {
    const uint8_t *codes; /* borrowed */
    size_t n;
    size_t code_bytes;
    uint32_t bits;
    uint32_t tables;    /* the paper's m */
    uint32_t long_bits; /* ceil(bits / m), the length of the first `longer` substrings */
    uint32_t longer;
    enum lab_layout layout;
    struct lab_table *table; /* m tables, or one merged table */
};

struct lab_bucket {
    const uint32_t *rows;
    size_t size;
};

static inline const uint8_t *lab_code(const lab_index *index, size_t row) {
    return index->codes + row * index->code_bytes;
}

/* Length of substring t in bits. */
static inline uint32_t lab_substring_bits(const lab_index *index, uint32_t t) {
    return index->long_bits - (t >= index->longer);
}

/* First bit of substring t. */
static inline uint32_t lab_substring_start(const lab_index *index, uint32_t t) {
    return t * index->long_bits - (t > index->longer ? t - index->longer : 0);
}

/* Substring t of a packed code; its bit j is the code's bit start + j. A substring touches at most
 * (7 + LAB_MAX_SUBSTRING_BITS) / 8 rounded up = 4 bytes, none of them past the code. */
static inline uint32_t lab_substring(const lab_index *index, const uint8_t *code, uint32_t t) {
    uint32_t start = lab_substring_start(index, t), length = lab_substring_bits(index, t);
    uint32_t word = 0;
    for (uint32_t byte = start >> 3; byte <= (start + length - 1) >> 3; byte++)
        word |= (uint32_t)code[byte] << (8 * (byte - (start >> 3)));
    return (word >> (start & 7)) & ((UINT32_C(1) << length) - 1);
}

/* The bucket of a key of substring t. In the merged table, equal keys of all substrings share one bucket. */
static inline struct lab_bucket lab_bucket(const lab_index *index, uint32_t t, uint32_t key) {
    const struct lab_table *table = &index->table[index->layout == LAB_SINGLE ? 0 : t];
    uint32_t start = table->starts[key];
    return (struct lab_bucket){table->postings + start, table->starts[key + 1] - start};
}

#endif
