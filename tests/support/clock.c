/* Moves the wall clock of a process and of its children, for tests/clocks.py, which preloads this file (x86-64, glibc).

   CLOCK_OFFSET names a file of 8 bytes: the seconds by which the clock is ahead, which may change while processes run. Some libraries
   ask the kernel's vDSO for the time and no function of libc, so the vDSO's functions are overwritten in this process's copy of them.
   Waits with a deadline of the wall clock end at the kernel's time, and so have theirs moved back. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

static const int64_t none;
static volatile const int64_t *ahead = &none;

static long from_kernel(clockid_t id, struct timespec *now) {
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(SYS_clock_gettime), "D"((long)id), "S"(now) : "rcx", "r11", "memory");
    return answer;
}

static long moved_gettime(clockid_t id, struct timespec *now) {
    long answer = from_kernel(id, now);
    if (!answer && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return answer;
}

static long moved_gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    moved_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = (struct timeval){precise.tv_sec, precise.tv_nsec / 1000};
    return 0;
}

static time_t moved_time(time_t *into) {
    struct timespec now;
    moved_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

static void replace(char *function, void *by) {
    unsigned char jump[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; /* mov rax, by; jmp rax */
    memcpy(jump + 2, &by, 8);
    memcpy(function, jump, sizeof jump);
}

__attribute__((constructor)) static void start(void) {
    const char *name = getenv("CLOCK_OFFSET");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    char *vdso = (char *)getauxval(AT_SYSINFO_EHDR);
    if (file < 0 || !vdso) return;
    void *offset = mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
    if (offset == MAP_FAILED) return;
    ahead = offset;
    const Elf64_Ehdr *head = (Elf64_Ehdr *)vdso;
    const Elf64_Phdr *parts = (Elf64_Phdr *)(vdso + head->e_phoff);
    const Elf64_Dyn *table = NULL;
    size_t size = 0;
    for (int i = 0; i < head->e_phnum; i++) {
        if (parts[i].p_type == PT_DYNAMIC) table = (Elf64_Dyn *)(vdso + parts[i].p_offset);
        if (parts[i].p_type == PT_LOAD) size = (parts[i].p_memsz + 4095) & ~4095ul;
    }
    const Elf64_Sym *symbols = NULL;
    const char *names = NULL;
    for (const Elf64_Dyn *one = table; one && one->d_tag != DT_NULL; one++) {
        if (one->d_tag == DT_SYMTAB) symbols = (Elf64_Sym *)(vdso + one->d_un.d_ptr);
        if (one->d_tag == DT_STRTAB) names = vdso + one->d_un.d_ptr;
    }
    if (!symbols || !names || mprotect(vdso, size, PROT_READ | PROT_WRITE | PROT_EXEC)) return;
    for (const Elf64_Sym *one = symbols; (const char *)one < names; one++) { /* the names stand behind the symbols */
        const char *its = names + one->st_name;
        if (!strcmp(its, "__vdso_clock_gettime")) replace(vdso + one->st_value, moved_gettime);
        if (!strcmp(its, "__vdso_gettimeofday")) replace(vdso + one->st_value, moved_gettimeofday);
        if (!strcmp(its, "__vdso_time")) replace(vdso + one->st_value, moved_time);
    }
    mprotect(vdso, size, PROT_READ | PROT_EXEC);
}

/* A deadline of the monotonic clock is no billion of seconds. */
static struct timespec back(const struct timespec *until) {
    return (struct timespec){until->tv_sec - (until->tv_sec > 1000000000 ? *ahead : 0), until->tv_nsec};
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    struct timespec deadline = back(until);
    int (*real)(void *, void *, void *) = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* two versions exist */
    return real(condition, mutex, &deadline);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t id, const struct timespec *until) {
    struct timespec deadline = back(until);
    int (*real)(void *, void *, clockid_t, void *) = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    return real(condition, mutex, id, &deadline);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    struct timespec deadline = back(until);
    int (*real)(void *, void *) = dlsym(RTLD_NEXT, "sem_timedwait");
    return real(semaphore, &deadline);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t id, const struct timespec *restrict until) {
    struct timespec deadline = back(until);
    int (*real)(void *, clockid_t, void *) = dlsym(RTLD_NEXT, "sem_clockwait");
    return real(semaphore, id, &deadline);
}
