/* |T_one| and |T_all|: how many bucket indices the m tables share (Sec. IV.B, Table I).
 *
 *     tables_with[key]:  0 = empty everywhere,  1 = non-empty in one table (T_one),  2 = in more than one
 *
 *     T_all = T_1 u ... u T_m = every key whose entry is not 0
 *
 * The numbers are computed from the codes, not from the tables, because the merged table does not store which substring
 * a row came from.
 */
#include "hash_table.h"

#include <stdlib.h>
#include <string.h>

int lab_index_usage(const lab_index *index, struct lab_usage *usage) {
    size_t keys = (size_t)1 << index->long_bits;
    int status = LAB_MEMORY;
    uint8_t *tables_with = calloc(keys, 1);
    uint8_t *here = malloc(keys);
    if (!tables_with || !here) goto done;
    for (uint32_t t = 0; t < index->tables; t++) {
        memset(here, 0, keys);
        for (size_t row = 0; row < index->n; row++) here[lab_substring(index, lab_code(index, row), t)] = 1;
        for (size_t key = 0; key < keys; key++)
            if (here[key] && tables_with[key] < 2) tables_with[key]++;
    }
    *usage = (struct lab_usage){0, 0};
    for (size_t key = 0; key < keys; key++) {
        usage->all += tables_with[key] > 0;
        usage->one += tables_with[key] == 1;
    }
    status = LAB_OK;
done:
    free(here);
    free(tables_with);
    return status;
}
