// Put before sources whose kernels wait for other devices: their loops end after DEADLINE nanoseconds with an error of
// the device, so that no kernel waits for ever for a rank that is gone.
//
// compile-with: -DDEADLINE=1000ull

#define SPINS 65536u  // between two looks at the clock

__device__ inline void check_deadline(unsigned long long& since)
{
#ifdef __HIP_PLATFORM_AMD__
    const unsigned long long now = wall_clock64() * 10ull;  // ticks of 10 nanoseconds
#else
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
#endif
    if (!since) since = now;
    if (now - since > DEADLINE) __trap();
}

#define WAIT_WHILE(condition)                                \
    do {                                                     \
        unsigned spins = 0;                                  \
        unsigned long long since = 0;                        \
        while (condition)                                    \
            if (++spins % SPINS == 0) check_deadline(since); \
    } while (0)
