// Put before sources whose kernels wait for other devices: their loops end after DEADLINE nanoseconds with an error of
// the device, so that no kernel waits for ever for a rank that is gone.
//
// compile-with: -DDEADLINE=1000ull

#define SPINS 65536u  // between two looks at the clock

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIPCC_RTC__)
__device__ inline unsigned long long nanoseconds() { return wall_clock64() * 10ull; }  // its ticks have 10
__device__ inline void stop() { __builtin_trap(); }
#else
__device__ inline unsigned long long nanoseconds()
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
__device__ inline void stop() { __trap(); }
#endif

__device__ inline void check_deadline(unsigned long long& since)
{
    const unsigned long long now = nanoseconds();
    if (!since) since = now;
    if (now - since > DEADLINE) stop();
}

#define WAIT_WHILE(condition)                                \
    do {                                                     \
        unsigned spins = 0;                                  \
        unsigned long long since = 0;                        \
        while (condition)                                    \
            if (++spins % SPINS == 0) check_deadline(since); \
    } while (0)
