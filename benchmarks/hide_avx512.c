/* Makes this process see a processor without AVX-512, AVX-VNNI and AMX. Loaded by LD_PRELOAD.
 *
 * CPUID is made to fault (Linux, arch_prctl(ARCH_SET_CPUID), processors with "cpuid_fault"), and
 * the handler answers with those bits cleared. /proc/cpuinfo is answered from a filtered copy
 * whose model name says so, which is what a benchmark's description of the machine reads. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define EXTENDED_FEATURES 7

/* CPUID leaf 7, Intel SDM volume 2A: subleaf 0 EBX, ECX, EDX and subleaf 1 EAX. */
static const unsigned HIDDEN_EBX = 1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 |
                                   1u << 28 | 1u << 30 | 1u << 31;
static const unsigned HIDDEN_ECX = 1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14;
static const unsigned HIDDEN_EDX = 1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 |
                                   1u << 24 | 1u << 25;
static const unsigned HIDDEN_EAX_1 = 1u << 4 | 1u << 5;

static void let_cpuid(int allowed) {
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed) != 0) {
        static const char text[] = "hide_avx512: this processor or kernel has no cpuid_fault\n";
        if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(70);
        _exit(69);
    }
}

static void on_fault(int number, siginfo_t *info, void *state) {
    greg_t *registers = ((ucontext_t *)state)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    if (info->si_code <= 0 || code[0] != 0x0f || code[1] != 0xa2) { /* not CPUID: a real fault */
        signal(number, SIG_DFL);
        return;
    }
    unsigned leaf = (unsigned)registers[REG_RAX], subleaf = (unsigned)registers[REG_RCX];
    unsigned a, b, c, d;
    let_cpuid(1);
    __cpuid_count(leaf, subleaf, a, b, c, d);
    let_cpuid(0);
    if (leaf == EXTENDED_FEATURES && subleaf == 0) {
        b &= ~HIDDEN_EBX;
        c &= ~HIDDEN_ECX;
        d &= ~HIDDEN_EDX;
    } else if (leaf == EXTENDED_FEATURES && subleaf == 1) {
        a &= ~HIDDEN_EAX_1;
    }
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    let_cpuid(0);
}

static int is_hidden(const char *flag) {
    return !strncmp(flag, "avx512", 6) || !strncmp(flag, "amx_", 4) || !strcmp(flag, "avx_vnni");
}

static void copy_line(FILE *to, char *line) {
    if (!strncmp(line, "model name", 10)) {
        line[strcspn(line, "\n")] = 0;
        fprintf(to, "%s (AVX-512 hidden)\n", line);
    } else if (!strncmp(line, "flags", 5)) {
        char *rest = strchr(line, ':');
        fprintf(to, "%.*s:", (int)(rest - line), line);
        for (char *flag = strtok(rest + 1, " \n"); flag; flag = strtok(NULL, " \n"))
            if (!is_hidden(flag)) fprintf(to, " %s", flag);
        fputc('\n', to);
    } else {
        fputs(line, to);
    }
}

/* A descriptor of the filtered copy, at its beginning. */
static int filtered(int original) {
    int copy = memfd_create("cpuinfo", 0);
    FILE *from = fdopen(original, "r"), *to = fdopen(dup(copy), "w");
    if (copy < 0 || !from || !to) abort();
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, from) >= 0) copy_line(to, line);
    free(line);
    fclose(from);
    fclose(to);
    lseek(copy, 0, SEEK_SET);
    return copy;
}

static int open_as(const char *name, const char *path, int flags, unsigned mode) {
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
    int found = real(path, flags, mode);
    return found >= 0 && !strcmp(path, "/proc/cpuinfo") ? filtered(found) : found;
}

#define OPEN(name)                                         \
    int name(const char *path, int flags, ...) {           \
        va_list rest;                                      \
        va_start(rest, flags);                             \
        unsigned mode = va_arg(rest, unsigned);            \
        va_end(rest);                                      \
        return open_as(#name, path, flags, mode);          \
    }
OPEN(open)
OPEN(open64)
