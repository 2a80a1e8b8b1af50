/* Probing sequences, independent of the generator. See sequence.h. */
#include "sequence.h"

#include "weigher.h"

int lab_sequence_init(struct lab_sequence *sequence, uint32_t bits, enum lab_generator generator) {
    *sequence = (struct lab_sequence){.bits = bits};
    if (generator == LAB_MULTI_SEQUENCE && !(sequence->parts = lab_parts_new(bits))) return LAB_MEMORY;
    return LAB_OK;
}

void lab_sequence_free(struct lab_sequence *sequence) {
    lab_frontier_free(&sequence->frontier);
    lab_parts_free(sequence->parts);
    *sequence = (struct lab_sequence){0};
}

int lab_sequence_start(struct lab_sequence *sequence, uint32_t optimum, const uint64_t *deltas) {
    sequence->frontier.size = 0;
    sequence->optimum = optimum;
    return sequence->parts ? lab_parts_start(sequence, deltas) : lab_flips_start(sequence, deltas);
}

int lab_sequence_next(struct lab_sequence *sequence, struct lab_probe *probe) {
    return sequence->parts ? lab_parts_next(sequence, probe) : lab_flips_next(sequence, probe);
}

int lab_probing_order(uint32_t optimum, const uint64_t *deltas, uint32_t bits, enum lab_generator generator,
                      size_t count, uint32_t *keys, uint64_t *key_costs) {
    if (bits < 1 || bits > LAB_MAX_SUBSTRING_BITS) return LAB_ARGUMENT;
    if (generator != LAB_FLIPS && generator != LAB_MULTI_SEQUENCE) return LAB_ARGUMENT;
    if (lab_check_deltas(deltas, bits) != LAB_OK) return LAB_COST;
    struct lab_sequence sequence;
    int status = lab_sequence_init(&sequence, bits, generator);
    if (status == LAB_OK) status = lab_sequence_start(&sequence, optimum, deltas);
    for (size_t i = 0; status == LAB_OK && i < count && !lab_sequence_ended(&sequence); i++) {
        struct lab_probe probe = {0};
        status = lab_sequence_next(&sequence, &probe);
        keys[i] = probe.key;
        key_costs[i] = probe.cost;
    }
    lab_sequence_free(&sequence);
    return status;
}
