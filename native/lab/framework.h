#ifndef WHAMMING_LAB_FRAMEWORK_H
#define WHAMMING_LAB_FRAMEWORK_H
/* The search framework for long codes (Sec. IV.A, Alg. 2), shared by FSWBC and PQTable. */
#include "lab.h"

/* Answer a batch with this bucket generator and stop criterion. Failures: LAB_MEMORY, LAB_COST. */
int lab_framework(const lab_index *index, const struct lab_costs *costs, size_t k, enum lab_generator generator,
                  enum lab_criterion criterion, struct lab_answers *answers);

#endif
