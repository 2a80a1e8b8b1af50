/* Texts of the status codes. */
#include "whamming.h"

const char *wh_status_text(int status) {
    switch (status) {
    case WH_OK:
        return "success";
    case WH_MEMORY:
        return "out of memory";
    case WH_ARGUMENT:
        return "an argument is out of range";
    case WH_NOT_FINITE:
        return "a cost is NaN or infinite";
    case WH_CORRUPT:
        return "the index's arrays are corrupt";
    case WH_VERSION:
        return "the index's arrays have a format version that this build does not read";
    case WH_NO_TABLES:
        return "the index has no tables to probe";
    case WH_TOO_LARGE:
        return "the index is too large for the single layout: codes x tables exceeds 2^32 - 1";
    case WH_SPAN:
        return "the costs differ too much in magnitude to add them up exactly";
    case WH_STOPPED:
        return "the build was cancelled";
    case WH_OVERFLOW:
        return "a distance is beyond the range of a double; scale the costs down";
    default:
        return "unknown status";
    }
}
