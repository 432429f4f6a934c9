/* A disk that fails or hangs: preloaded into a broker, it lets the syncs of its CommitLog fail while the file "fail-sync"
   is in the data directory, and adds a byte to that file each time. While the file "hang-sync" is there, they wait. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int must_fail(int file)
{
    char link[64], path[PATH_MAX + 16];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (length < 0)
        return 0;
    path[length] = 0;
    char *log = strstr(path, "/commitlog");
    if (log == NULL)
        return 0;
    strcpy(log, "/hang-sync");
    while (access(path, F_OK) == 0)
        usleep(10000);
    strcpy(log, "/fail-sync");
    int signal = open(path, O_WRONLY | O_APPEND);
    if (signal < 0)
        return 0;
    int counted = write(signal, "x", 1) == 1;
    close(signal);
    return counted;
}

int fdatasync(int file)
{
    if (must_fail(file)) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_fdatasync, file);
}

int fsync(int file)
{
    if (must_fail(file)) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_fsync, file);
}
