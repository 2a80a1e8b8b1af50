/* Records what a process does to the files in one directory tree, so that a test can replay it: see recorded_disk.py.
 *
 * Preloaded with LD_PRELOAD, it wraps the functions of libc that change files or sync them. A wrapper calls the real
 * function and then appends a record to the log. One lock is held over both, so the log has the order of the calls. A
 * sync has two records, before and after the call, and the lock is free in between: only what was written before it
 * began is certain to be on disk when it ends.
 *
 *     WHAMMING_RECORD_ROOT    the directory: an absolute path without symbolic links
 *     WHAMMING_RECORD_LOG     the log, which must exist; records are appended
 *
 * Files are identified by inode, because they may be renamed or removed while they are open. Writes through a shared
 * memory map are not seen; the log tells which files had one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind {
    CREATE = 'c',      /* path */
    DIRECTORY = 'd',   /* path */
    RENAME = 'r',      /* path NUL path */
    UNLINK = 'u',      /* path of a file or a directory */
    WRITE = 'w',       /* bytes at an offset */
    TRUNCATE = 't',    /* to the size in `offset` */
    EXTEND = 'e',      /* to at least the size in `offset` */
    WRITTEN = 'D',     /* the last write of this file is on disk: it went through an O_DSYNC descriptor */
    FSYNC = 'F',       /* fsync has begun */
    FDATASYNC = 'A',   /* fdatasync has begun */
    SYNCED = 'S',      /* the sync with the number in `offset` has ended */
    MAPPED = 'm',      /* a shared memory map that can be written to */
    UNSUPPORTED = 'x', /* the name of a function that the replay does not know */
    NOTE = 'n',        /* bytes from the process itself */
};

/* A record: this header, then `size` bytes. */
struct header {
    uint64_t kind, inode, offset, size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static int log_fd = -1;
static uint64_t records;
static uint64_t left;      /* the process dies after so many more records of `last_kind`; 0: it does not */
static uint64_t last_kind; /* 0: of any kind */

#define REAL(result, name, ...)                                                                                        \
    static result (*real)(__VA_ARGS__);                                                                                \
    if (real == NULL) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static void fail(const char *what) {
    dprintf(2, "disk_recorder: %s: %s\n", what, strerror(errno));
    abort();
}

__attribute__((constructor)) static void start(void) {
    const char *directory = getenv("WHAMMING_RECORD_ROOT"), *path = getenv("WHAMMING_RECORD_LOG");
    if (directory == NULL || path == NULL || strlen(directory) >= sizeof root) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) fail("cannot open the log");
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 500);
    syscall(SYS_close, fd);
    strcpy(root, directory);
}

/* Append a record. The caller holds the lock. */
static void append(enum kind kind, uint64_t inode, uint64_t offset, const struct iovec *parts, int count, size_t size) {
    struct header header = {kind, inode, offset, size};
    struct iovec all[IOV_MAX];
    int used = 1;
    all[0] = (struct iovec){&header, sizeof header};
    for (int i = 0; i < count && size > 0; i++) { /* of a short write, only what was written */
        size_t length = parts[i].iov_len < size ? parts[i].iov_len : size;
        all[used++] = (struct iovec){parts[i].iov_base, length};
        size -= length;
    }
    if (syscall(SYS_writev, log_fd, all, used) != (long)(sizeof header + header.size)) fail("cannot write to the log");
    records++;
    if (left > 0 && (last_kind == 0 || last_kind == kind) && --left == 0) kill(getpid(), SIGKILL);
}

static void append_text(enum kind kind, uint64_t inode, const char *text, size_t size) {
    struct iovec part = {(void *)text, size};
    append(kind, inode, 0, &part, 1, size);
}

/* -- which files ---------------------------------------------------------------------------------------------------- */

static bool is_inside(const char *path) {
    size_t length = strlen(root);
    return log_fd >= 0 && strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* Whether an open file is in the directory. Fills in its status. */
static bool is_ours(int fd, struct stat *status) {
    char link[64], path[PATH_MAX];
    int saved = errno;
    if (log_fd < 0 || fd < 0 || fd == log_fd) return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return false;
    path[length] = 0;
    return is_inside(path) && fstat(fd, status) == 0;
}

/* Writes the absolute path into `to`, which has PATH_MAX bytes. Returns whether it is in the directory. */
static bool resolve(int directory, const char *path, char *to) {
    char base[PATH_MAX] = "", link[64] = "/proc/self/cwd";
    int saved = errno;
    if (log_fd < 0) return false;
    if (path[0] != '/') {
        if (directory != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, base, sizeof base - 1);
        base[length < 0 ? 0 : length] = 0;
    }
    int length = snprintf(to, PATH_MAX, "%s%s%s", base, base[0] ? "/" : "", path);
    errno = saved;
    return length < PATH_MAX && is_inside(to);
}

/* -- opening -------------------------------------------------------------------------------------------------------- */

static int open_at(int directory, const char *path, int flags, mode_t mode) {
    REAL(int, "openat64", int, const char *, int, ...);
    char whole[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC)) || !resolve(directory, path, whole)) return real(directory, path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat before, after;
    bool existed = fstatat(directory, path, &before, 0) == 0;
    int fd = real(directory, path, flags, mode);
    if (fd >= 0 && fstat(fd, &after) == 0) {
        if (!existed) append_text(CREATE, after.st_ino, whole, strlen(whole));
        else if ((flags & O_TRUNC) && before.st_size > 0) append(TRUNCATE, after.st_ino, 0, NULL, 0, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

static mode_t mode_of(int flags, va_list arguments) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        mode_t mode = mode_of(flags, arguments);                                                                       \
        va_end(arguments);                                                                                             \
        return open_at(AT_FDCWD, path, flags, mode);                                                                   \
    }
#define OPENAT(name)                                                                                                   \
    int name(int directory, const char *path, int flags, ...) {                                                        \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        mode_t mode = mode_of(flags, arguments);                                                                       \
        va_end(arguments);                                                                                             \
        return open_at(directory, path, flags, mode);                                                                  \
    }
OPEN(open)
OPEN(open64)
OPEN(__open_2)
OPEN(__open64_2)
OPENAT(openat)
OPENAT(openat64)
OPENAT(__openat_2)
OPENAT(__openat64_2)

int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* -- writing -------------------------------------------------------------------------------------------------------- */

/* Write to an offset, or to the current position if it is -1. */
static ssize_t write_at(int fd, const struct iovec *parts, int count, off_t offset) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    static ssize_t (*real_at)(int, const struct iovec *, int, off_t);
    if (real_at == NULL) real_at = (ssize_t (*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, "pwritev64");
    struct stat status;
    bool ours = is_ours(fd, &status) && S_ISREG(status.st_mode);
    if (ours) pthread_mutex_lock(&lock);
    ssize_t done = offset == -1 ? real(fd, parts, count) : real_at(fd, parts, count, offset);
    if (!ours) return done;
    if (done > 0) {
        int flags = fcntl(fd, F_GETFL);
        off_t start = offset == -1 || (flags & O_APPEND) ? lseek(fd, 0, SEEK_CUR) - done : offset;
        if (offset != -1 && (flags & O_APPEND)) append_text(UNSUPPORTED, status.st_ino, "pwrite with O_APPEND", 20);
        append(WRITE, status.st_ino, (uint64_t)start, parts, count, (size_t)done);
        if (flags & O_DSYNC) /* one bit of O_SYNC */
            append(WRITTEN, status.st_ino, 0, NULL, 0, 0);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *bytes, size_t size) {
    struct iovec part = {(void *)bytes, size};
    return write_at(fd, &part, 1, -1);
}
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
    struct iovec part = {(void *)bytes, size};
    return write_at(fd, &part, 1, offset);
}
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset) { return pwrite(fd, bytes, size, offset); }
ssize_t writev(int fd, const struct iovec *parts, int count) { return write_at(fd, parts, count, -1); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return write_at(fd, parts, count, offset);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return write_at(fd, parts, count, offset);
}

static void note_file(enum kind kind, int fd, const char *name);

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    if (flags != 0) note_file(UNSUPPORTED, fd, "pwritev2 with flags");
    return write_at(fd, parts, count, offset);
}
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return pwritev64v2(fd, parts, count, offset, flags);
}

static int resize(int fd, off_t size, enum kind kind, int result) {
    struct stat status;
    if (result == 0 && is_ours(fd, &status)) append(kind, status.st_ino, (uint64_t)size, NULL, 0, 0);
    return result;
}

int ftruncate(int fd, off_t size) {
    REAL(int, "ftruncate64", int, off_t);
    pthread_mutex_lock(&lock);
    int result = resize(fd, size, TRUNCATE, real(fd, size));
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int posix_fallocate(int fd, off_t offset, off_t size) {
    REAL(int, "posix_fallocate64", int, off_t, off_t);
    pthread_mutex_lock(&lock);
    int result = resize(fd, offset + size, EXTEND, real(fd, offset, size));
    pthread_mutex_unlock(&lock);
    return result;
}
int posix_fallocate64(int fd, off64_t offset, off64_t size) { return posix_fallocate(fd, offset, size); }

/* -- syncing -------------------------------------------------------------------------------------------------------- */

static int sync_file(int fd, enum kind kind, int (*real)(int)) {
    struct stat status;
    if (!is_ours(fd, &status)) return real(fd);
    pthread_mutex_lock(&lock);
    uint64_t begun = records;
    append(kind, status.st_ino, begun, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    int result = real(fd);
    if (result == 0) {
        pthread_mutex_lock(&lock);
        append(SYNCED, status.st_ino, begun, NULL, 0, 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    return sync_file(fd, FSYNC, real);
}
int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return sync_file(fd, FDATASYNC, real);
}

/* -- directories ---------------------------------------------------------------------------------------------------- */

static int rename_at(int from_directory, const char *from, int to_directory, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    char old[2 * PATH_MAX], new[PATH_MAX];
    bool leaves = resolve(from_directory, from, old), arrives = resolve(to_directory, to, new);
    if (!leaves && !arrives) return real(from_directory, from, to_directory, to);
    pthread_mutex_lock(&lock);
    int result = real(from_directory, from, to_directory, to);
    if (result == 0) {
        size_t length = strlen(old) + 1;
        strcpy(old + length, new);
        append_text(leaves && arrives ? RENAME : UNSUPPORTED, 0, old, length + strlen(new));
    }
    pthread_mutex_unlock(&lock);
    return result;
}
int rename(const char *from, const char *to) { return rename_at(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    return rename_at(from_directory, from, to_directory, to);
}

static int unlink_at(int directory, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    char whole[PATH_MAX];
    if (!resolve(directory, path, whole)) return real(directory, path, flags);
    pthread_mutex_lock(&lock);
    int result = real(directory, path, flags);
    if (result == 0) append_text(UNLINK, 0, whole, strlen(whole));
    pthread_mutex_unlock(&lock);
    return result;
}
int unlink(const char *path) { return unlink_at(AT_FDCWD, path, 0); }
int unlinkat(int directory, const char *path, int flags) { return unlink_at(directory, path, flags); }
int rmdir(const char *path) { return unlink_at(AT_FDCWD, path, AT_REMOVEDIR); }

static int make_directory_at(int directory, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    char whole[PATH_MAX];
    if (!resolve(directory, path, whole)) return real(directory, path, mode);
    pthread_mutex_lock(&lock);
    struct stat status;
    int result = real(directory, path, mode);
    if (result == 0 && fstatat(directory, path, &status, 0) == 0)
        append_text(DIRECTORY, status.st_ino, whole, strlen(whole));
    pthread_mutex_unlock(&lock);
    return result;
}
int mkdir(const char *path, mode_t mode) { return make_directory_at(AT_FDCWD, path, mode); }
int mkdirat(int directory, const char *path, mode_t mode) { return make_directory_at(directory, path, mode); }

/* -- what the replay does not know ---------------------------------------------------------------------------------- */

static void note_file(enum kind kind, int fd, const char *name) {
    struct stat status;
    if (!is_ours(fd, &status)) return;
    pthread_mutex_lock(&lock);
    append_text(kind, status.st_ino, name, strlen(name));
    pthread_mutex_unlock(&lock);
}

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t offset) {
    REAL(void *, "mmap64", void *, size_t, int, int, int, off64_t);
    if (fd >= 0 && (protection & PROT_WRITE) && (flags & MAP_SHARED)) note_file(MAPPED, fd, "mmap");
    return real(address, size, protection, flags, fd, offset);
}
void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap64(address, size, protection, flags, fd, offset);
}

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t size, unsigned int flags) {
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned int);
    note_file(UNSUPPORTED, to, "copy_file_range");
    return real(from, from_offset, to, to_offset, size, flags);
}
ssize_t sendfile64(int to, int from, off64_t *offset, size_t size) {
    REAL(ssize_t, "sendfile64", int, int, off64_t *, size_t);
    note_file(UNSUPPORTED, to, "sendfile");
    return real(to, from, offset, size);
}
ssize_t sendfile(int to, int from, off_t *offset, size_t size) { return sendfile64(to, from, offset, size); }

/* -- for the process itself ----------------------------------------------------------------------------------------- */

/* Put a note into the log. */
void disk_recorder_note(const char *bytes, size_t size) {
    pthread_mutex_lock(&lock);
    append_text(NOTE, 0, bytes, size);
    pthread_mutex_unlock(&lock);
}

/* Kill the process as soon as it has appended `count` more records of a kind; of any kind if it is 0. */
void disk_recorder_die_after(uint64_t count, uint64_t kind) {
    pthread_mutex_lock(&lock);
    left = count;
    last_kind = kind;
    pthread_mutex_unlock(&lock);
}
