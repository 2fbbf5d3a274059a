/* Hide instruction sets of this processor from a program and its children: a library for LD_PRELOAD.
 *
 * Linux can make the instruction CPUID fault (arch_prctl, ARCH_SET_CPUID; /proc/cpuinfo lists cpuid_fault). The handler
 * runs the instruction itself and clears bits of its result. Libraries that ask CPUID then choose the kernels that they
 * have for such a processor, which run at full speed.
 *
 * HIDDEN=vnni hides VNNI and AMX; HIDDEN=avx512 hides these and AVX-512, which leaves AVX2.
 * Bits: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define SET_CPUID 0x1012
#define BIT(n) (1u << (n))

typedef int (*sigaction_t)(int, const struct sigaction *, struct sigaction *);

static int all_of_avx512;
static sigaction_t next_sigaction;
static struct sigaction own; /* the program's own action for SIGSEGV */

static int action(int number, const struct sigaction *wanted, struct sigaction *old) {
  if (next_sigaction == NULL) next_sigaction = (sigaction_t)dlsym(RTLD_NEXT, "sigaction");
  return next_sigaction(number, wanted, old);
}

static void hide(uint32_t leaf, uint32_t subleaf, uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d) {
  if (leaf == 7 && subleaf == 0) {
    *c &= ~BIT(11);                        /* AVX512_VNNI */
    *d &= ~(BIT(22) | BIT(24) | BIT(25));  /* AMX-BF16, AMX-TILE, AMX-INT8 */
    if (all_of_avx512) {
      *b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
      *c &= ~(BIT(1) | BIT(6) | BIT(12) | BIT(14));
      *d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(23));
    }
  }
  if (leaf == 7 && subleaf == 1) {
    *a &= ~(BIT(4) | BIT(21));                                  /* AVX-VNNI, AMX-FP16 */
    *d &= ~(BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19));      /* AVX-VNNI-INT8, AVX-NE-CONVERT, AMX-COMPLEX, ... */
    if (all_of_avx512) *a &= ~BIT(5);                           /* AVX512_BF16 */
  }
  if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) *a = *b = *c = *d = 0; /* AMX tiles, AVX10 */
}

static void on_fault(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const uint8_t *at = (const uint8_t *)registers[REG_RIP];
  if (info->si_code == SI_KERNEL && at[0] == 0x0f && at[1] == 0xa2) {
    uint32_t leaf = registers[REG_RAX], subleaf = registers[REG_RCX], a = leaf, b, c = subleaf, d;
    syscall(SYS_arch_prctl, SET_CPUID, 1);
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    syscall(SYS_arch_prctl, SET_CPUID, 0);
    hide(leaf, subleaf, &a, &b, &c, &d);
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
    return;
  }
  if ((own.sa_flags & SA_SIGINFO) && own.sa_sigaction != NULL) {
    own.sa_sigaction(number, info, context);
  } else if (own.sa_handler != SIG_DFL && own.sa_handler != SIG_IGN) {
    own.sa_handler(number);
  } else {
    struct sigaction usual = {0};
    usual.sa_handler = SIG_DFL;
    action(SIGSEGV, &usual, NULL);
    raise(number);
  }
}

/* The program's own actions for SIGSEGV run after this one, however they are set. */
sighandler_t signal(int number, sighandler_t handler) {
  struct sigaction wanted = {0}, old = {0};
  wanted.sa_handler = handler;
  wanted.sa_flags = SA_RESTART;
  return sigaction(number, &wanted, &old) == 0 ? old.sa_handler : SIG_ERR;
}

int sigaction(int number, const struct sigaction *wanted, struct sigaction *old) {
  if (number != SIGSEGV) return action(number, wanted, old);
  if (old != NULL) *old = own;
  if (wanted != NULL) own = *wanted;
  return 0;
}

__attribute__((constructor)) static void start(void) {
  const char *hidden = getenv("HIDDEN");
  if (hidden == NULL) return;
  all_of_avx512 = strcmp(hidden, "avx512") == 0;
  struct sigaction wanted = {0};
  wanted.sa_sigaction = on_fault;
  wanted.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  action(SIGSEGV, &wanted, NULL);
  syscall(SYS_arch_prctl, SET_CPUID, 0);
}
