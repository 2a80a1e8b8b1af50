/* Texts of the status codes (enum lab_status in lab.h). */
#include "lab.h"

const char *lab_status_text(int status) {
    switch (status) {
    case LAB_OK:
        return "no error";
    case LAB_MEMORY:
        return "out of memory";
    case LAB_ARGUMENT:
        return "an argument is out of range";
    case LAB_TOO_LONG:
        return "a substring is longer than 24 bits; use more tables";
    case LAB_TOO_LARGE:
        return "codes x tables reaches 2^32; use fewer tables or split the codes";
    case LAB_COST:
        return "a query's deltas add up to 2^63 or more; round its costs to fewer bits";
    default:
        return "unknown status";
    }
}
