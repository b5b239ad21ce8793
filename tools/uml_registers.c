// SPDX-License-Identifier: LGPL-2.1-only
/*
 * Lets User-Mode Linux boot on processors with more state than it knows (AMX): preloaded by tools/e2e.sh.
 *
 * User-Mode Linux keeps the floating point state of a process in a buffer of fixed size, some 2.7 KiB. It reads less
 * than the processor has, which the host's kernel allows, and writes less, which the kernel refuses with EFAULT: the
 * first process ends, and the machine with it. Here a write has the whole size. What User-Mode Linux does not know
 * stays as a new process has it: in its initial state, which no bit of the header (XSTATE_BV) marks as used.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

long ptrace(enum __ptrace_request request, ...)
{
    static long (*real)(enum __ptrace_request, ...);
    static char state[1 << 16];
    static size_t size; /* of the processor's state, in bytes */
    va_list rest;

    va_start(rest, request);
    pid_t pid = va_arg(rest, pid_t);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);

    if (!real)
        real = dlsym(RTLD_NEXT, "ptrace");
    if (request != PTRACE_SETREGSET || address != (void *)NT_X86_XSTATE)
        return real(request, pid, address, data);

    struct iovec whole = {state, sizeof state};
    if (!size) {
        if (real(PTRACE_GETREGSET, pid, address, &whole))
            return -1;
        size = whole.iov_len;
    }
    struct iovec *given = data;
    if (given->iov_len >= size)
        return real(request, pid, address, data);
    memcpy(state, given->iov_base, given->iov_len);
    whole.iov_len = size;
    return real(request, pid, address, &whole);
}
