/* Multi-index hash tables, separate and merged (Sec. IV.A and IV.B).
 *
 * A code is cut into m substrings. The value of a substring is its key: the index of a bucket that has the code's row.
 *
 *     code  [ substring 0 | substring 1 | ... | substring m - 1 ]
 *
 *     LAB_MULTI   table 0:  starts [0 2 2 5 ...]   one table per substring
 *                                    |   |
 *                           postings [3 9 1 4 7 ...]
 *                 table 1:  ...
 *
 *     LAB_SINGLE  one pair of arrays: bucket `key` has the rows in which *any* substring equals `key`
 *
 * Invariant: the rows of a bucket are distinct and ascending. If several substrings of a row are equal, the merged
 * table has the row only once in their common bucket. So there are at most n x m postings.
 *
 * Tables are built by a counting sort, which needs no memory besides the finished tables.
 */
#include "hash_table.h"

#include <stdbool.h>
#include <stdlib.h>

/* Write the distinct values of substrings first .. last - 1 of a row. Returns their number. */
static uint32_t distinct_keys(const lab_index *index, size_t row, uint32_t first, uint32_t last, uint32_t *keys) {
    const uint8_t *code = lab_code(index, row);
    uint32_t count = 0;
    for (uint32_t t = first; t < last; t++) {
        uint32_t key = lab_substring(index, code, t);
        bool repeated = false;
        for (uint32_t i = 0; i < count; i++) repeated |= keys[i] == key;
        if (!repeated) keys[count++] = key;
    }
    return count;
}

/* Fill one table from substrings first .. last - 1 of all codes. */
static int build_table(const lab_index *index, uint32_t first, uint32_t last, struct lab_table *table) {
    uint32_t keys[LAB_MAX_BITS];
    size_t buckets = (size_t)1 << lab_substring_bits(index, first);
    /* `starts` has one entry more than needed. While rows are placed, starts[key + 1] is the position of the next row
     * of bucket `key`. Once all rows are placed, this position is where bucket key + 1 starts. */
    uint32_t *starts = table->starts = calloc(buckets + 2, sizeof *starts);
    if (!starts) return LAB_MEMORY;
    for (size_t row = 0; row < index->n; row++) {
        uint32_t count = distinct_keys(index, row, first, last, keys);
        for (uint32_t i = 0; i < count; i++) starts[keys[i] + 2]++;
    }
    for (size_t key = 2; key < buckets + 2; key++) starts[key] += starts[key - 1];
    uint32_t *postings = table->postings = malloc(((size_t)starts[buckets + 1] + 1) * sizeof *postings);
    if (!postings) return LAB_MEMORY;
    for (size_t row = 0; row < index->n; row++) {
        uint32_t count = distinct_keys(index, row, first, last, keys);
        for (uint32_t i = 0; i < count; i++) postings[starts[keys[i] + 1]++] = (uint32_t)row;
    }
    return LAB_OK;
}

static uint32_t table_count(const lab_index *index) { return index->layout == LAB_SINGLE ? 1 : index->tables; }

int lab_index_new(const uint8_t *codes, size_t n, uint32_t bits, uint32_t tables, enum lab_layout layout,
                  lab_index **index) {
    if (bits < 1 || bits > LAB_MAX_BITS || tables < 1 || tables > bits) return LAB_ARGUMENT;
    if (layout != LAB_MULTI && layout != LAB_SINGLE) return LAB_ARGUMENT;
    if ((bits + tables - 1) / tables > LAB_MAX_SUBSTRING_BITS) return LAB_TOO_LONG;
    if (n > UINT32_MAX / tables) return LAB_TOO_LARGE;
    int status = LAB_MEMORY;
    lab_index *made = calloc(1, sizeof *made);
    if (!made) goto failed;
    made->codes = codes;
    made->n = n;
    made->code_bytes = (bits + 7) / 8;
    made->bits = bits;
    made->tables = tables;
    made->long_bits = (bits + tables - 1) / tables;
    made->longer = bits % tables ? bits % tables : tables;
    made->layout = layout;
    made->table = calloc(table_count(made), sizeof *made->table);
    if (!made->table) goto failed;
    for (uint32_t t = 0; t < table_count(made); t++) {
        uint32_t last = layout == LAB_SINGLE ? tables : t + 1;
        status = build_table(made, t, last, &made->table[t]);
        if (status != LAB_OK) goto failed;
    }
    *index = made;
    return LAB_OK;
failed:
    lab_index_free(made);
    return status;
}

void lab_index_free(lab_index *index) {
    if (!index) return;
    for (uint32_t t = 0; index->table && t < table_count(index); t++) {
        free(index->table[t].starts);
        free(index->table[t].postings);
    }
    free(index->table);
    free(index);
}

void lab_index_storage(const lab_index *index, struct lab_storage *storage) {
    *storage = (struct lab_storage){.codes = (uint64_t)index->n * index->code_bytes};
    for (uint32_t t = 0; t < table_count(index); t++) {
        size_t buckets = (size_t)1 << lab_substring_bits(index, t);
        storage->directory += (buckets + 1) * sizeof(uint32_t);
        storage->postings += (uint64_t)index->table[t].starts[buckets] * sizeof(uint32_t);
    }
}
