/* Record the file operations of a process below one folder, or make one of them fail.

   Preloaded (LD_PRELOAD) and idle until `arm`. Calls that glibc makes itself, such as those of fopen, are not seen. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, RENAME, MMAP, KINDS };

static char root[PATH_MAX];
static int armed, log_fd = -1, fault_kind = -1, fault_errno;
static long fault_at, calls[KINDS];

/* Watch the calls below `folder`. `log` is a descriptor, or -1. The call number `at` (from 1) of `kind` fails with
   `error`; 0 writes only half. A kind of -1 lets nothing fail. */
void arm(const char *folder, int log, int kind, long at, int error) {
    snprintf(root, sizeof root, "%s", folder);
    log_fd = log, fault_kind = kind, fault_at = at, fault_errno = error;
    memset(calls, 0, sizeof calls);
    armed = 1;
}

void disarm(void) { armed = 0; }

long calls_of(int kind) { return calls[kind]; }

static char *path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlink, link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

static char *absolute(int dir, const char *name, char *path) {
    char folder[PATH_MAX] = "";
    if (name[0] == '/') folder[0] = 0;
    else if (dir == AT_FDCWD) { if (!getcwd(folder, sizeof folder)) folder[0] = 0; }
    else path_of(dir, folder);
    if (snprintf(path, PATH_MAX, "%s%s%s", folder, name[0] == '/' ? "" : "/", name) >= PATH_MAX) path[0] = 0;
    return path;
}

static int watched(const char *path) {
    size_t length = strlen(root);
    return armed && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

/* Is this the call that fails? */
static int fails(int kind, const char *path) {
    if (!watched(path)) return 0;
    long number = __atomic_add_fetch(&calls[kind], 1, __ATOMIC_SEQ_CST);
    if (kind != fault_kind || number != fault_at) return 0;
    errno = fault_errno;
    return 1;
}

static void note(const char *call, const char *path, const char *other, long offset, const void *data, size_t size) {
    char head[2 * PATH_MAX + 64];
    if (log_fd < 0 || !watched(path)) return;
    int length = snprintf(head, sizeof head, "%s\t%s\t%s\t%ld\t%zu\n", call, path, other, offset, size);
    struct iovec parts[2] = {{head, length}, {(void *)data, size}};
    int before = errno;
    syscall(SYS_writev, log_fd, parts, 2);
    errno = before;
}

/* Log that the work so far is done: a power cut may not lose it any more. */
void mark(void) { note("mark", root, "", 0, "", 0); }

static int open_at(int dir, const char *name, int flags, mode_t mode) {
    if (!armed) return syscall(SYS_openat, dir, name, flags, mode);
    char path[PATH_MAX];
    if (fails(OPEN, absolute(dir, name, path))) return -1;
    int fd = syscall(SYS_openat, dir, name, flags, mode);
    if (fd >= 0 && flags & (O_CREAT | O_TRUNC)) note("open", path, "", flags & O_TRUNC, "", 0);
    return fd;
}

#define MODE(last) mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { \
    va_list list; va_start(list, last); mode = va_arg(list, mode_t); va_end(list); }
int open(const char *name, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, name, flags, mode); }
int openat(int dir, const char *name, int flags, ...) { MODE(flags) return open_at(dir, name, flags, mode); }
int openat64(int dir, const char *name, int flags, ...) { MODE(flags) return open_at(dir, name, flags, mode); }

static ssize_t write_at(int fd, const void *data, size_t size, off_t offset, int positioned) {
    char path[PATH_MAX];
    if (armed && fails(WRITE, path_of(fd, path))) {
        if (fault_errno) return -1;
        size = (size + 1) / 2;
    }
    ssize_t done = positioned ? syscall(SYS_pwrite64, fd, data, size, offset) : syscall(SYS_write, fd, data, size);
    if (armed && done > 0)
        note("write", path, "", positioned ? offset : lseek(fd, 0, SEEK_CUR) - done, data, done);
    return done;
}

ssize_t write(int fd, const void *data, size_t size) { return write_at(fd, data, size, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return write_at(fd, data, size, at, 1); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return write_at(fd, data, size, at, 1); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!armed) return syscall(SYS_writev, fd, parts, count);
    for (int i = 0; i < count; i++)  /* one part is a legal short write */
        if (parts[i].iov_len) return write(fd, parts[i].iov_base, parts[i].iov_len);
    return 0;
}

ssize_t sendfile(int out, int in, off_t *offset, size_t size) {
    if (!armed) return syscall(SYS_sendfile, out, in, offset, size);
    char *data = malloc(1 << 20);
    off_t at = offset ? *offset : lseek(in, 0, SEEK_CUR);
    ssize_t done = pread(in, data, size < 1 << 20 ? size : 1 << 20, at);
    if (done > 0) done = write(out, data, done);
    if (done > 0 && offset) *offset += done;
    else if (done > 0) lseek(in, at + done, SEEK_SET);
    free(data);
    return done;
}
ssize_t sendfile64(int out, int in, off_t *offset, size_t size) { return sendfile(out, in, offset, size); }

static int sync_file(int fd, long call) {
    char path[PATH_MAX];
    if (armed && fails(FSYNC, path_of(fd, path))) return -1;
    int failed = syscall(call, fd);
    if (armed && !failed) note("fsync", path, "", 0, "", 0);
    return failed;
}
int fsync(int fd) { return sync_file(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_file(fd, SYS_fdatasync); }

int ftruncate(int fd, off_t size) {
    char path[PATH_MAX];
    int failed = syscall(SYS_ftruncate, fd, size);
    if (armed && !failed) note("truncate", path_of(fd, path), "", size, "", 0);
    return failed;
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

int renameat(int from, const char *old, int to, const char *name) {
    char source[PATH_MAX], target[PATH_MAX];
    if (armed) absolute(from, old, source), absolute(to, name, target);
    if (armed && fails(RENAME, target)) return -1;
    int failed = syscall(SYS_renameat, from, old, to, name);
    if (armed && !failed) note("rename", source, target, 0, "", 0);
    return failed;
}
int rename(const char *old, const char *name) { return renameat(AT_FDCWD, old, AT_FDCWD, name); }

int linkat(int from, const char *old, int to, const char *name, int flags) {
    char source[PATH_MAX], target[PATH_MAX];
    int failed = syscall(SYS_linkat, from, old, to, name, flags);
    if (armed && !failed) note("link", absolute(from, old, source), absolute(to, name, target), 0, "", 0);
    return failed;
}
int link(const char *old, const char *name) { return linkat(AT_FDCWD, old, AT_FDCWD, name, 0); }

int unlinkat(int dir, const char *name, int flags) {
    char path[PATH_MAX];
    int failed = syscall(SYS_unlinkat, dir, name, flags);
    if (armed && !failed) note("unlink", absolute(dir, name, path), "", 0, "", 0);
    return failed;
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char *name) {
    int failed = unlink(name);
    return failed && errno == EISDIR ? rmdir(name) : failed;
}

int mkdirat(int dir, const char *name, mode_t mode) {
    char path[PATH_MAX];
    int failed = syscall(SYS_mkdirat, dir, name, mode);
    if (armed && !failed) note("mkdir", absolute(dir, name, path), "", 0, "", 0);
    return failed;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    char path[PATH_MAX];
    if (armed && fd >= 0 && fails(MMAP, path_of(fd, path))) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}
void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap(address, size, protection, flags, fd, offset);
}
