/* The library's threads. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "native.h"

/* One job at a time. Units are claimed from `state`, a job number, the units in all and the next unit in one word: a
   claim succeeds only while the job has units left, and the job cannot end before all claimed units are done, so whoever
   holds a claim may read the job. A worker that the system has put aside delays nobody: the others take its units.
   Workers spin for a moment after each job, since a decode step brings the next within microseconds, then sleep. */

enum { MAX_THREADS = 256, BITS = 24 };
static const uint64_t MASK = (1u << BITS) - 1;
static const int SPINS = 4000;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_ullong state;
    atomic_long done;
    atomic_int sleeping;
    atomic_int threads;
    atomic_long grain;
    const void *job;
    kernel_t kernel;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .threads = 1};

static inline void pause_(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline int units_left(uint64_t state) { return (state & MASK) < (state >> BITS & MASK); }

/* Run claimed units until the job has none left. */
static void take_units(void) {
    unsigned long long state = atomic_load_explicit(&pool.state, memory_order_acquire);
    while (units_left(state)) {
        long first = (long)(state & MASK), n = (long)(state >> BITS & MASK);
        long grain = atomic_load_explicit(&pool.grain, memory_order_relaxed);
        long last = first + grain < n ? first + grain : n;
        if (!atomic_compare_exchange_weak_explicit(&pool.state, &state, state + (uint64_t)(last - first),
                                                   memory_order_acquire, memory_order_acquire))
            continue;
        pool.kernel(pool.job, first, last);
        atomic_fetch_add_explicit(&pool.done, last - first, memory_order_release);
        state = atomic_load_explicit(&pool.state, memory_order_acquire);
    }
}

static void *worker(void *unused) {
    (void)unused;
    for (;;) {
        for (int spins = 0; !units_left(atomic_load_explicit(&pool.state, memory_order_acquire)); spins++) {
            if (spins < SPINS) {
                pause_();
                continue;
            }
            pthread_mutex_lock(&pool.lock);
            atomic_fetch_add(&pool.sleeping, 1);
            while (!units_left(atomic_load(&pool.state))) pthread_cond_wait(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.sleeping, 1);
            pthread_mutex_unlock(&pool.lock);
        }
        take_units();
    }
    return NULL;
}

/* Start the workers, once; the caller is one of the threads. Returns how many threads there are. */
int poot_threads(int threads) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&pool.lock);
    for (pthread_t thread; pool.threads < threads && pool.threads < MAX_THREADS; pool.threads++)
        if (pthread_create(&thread, &attributes, worker, NULL)) break;
    const int there = pool.threads;
    pthread_mutex_unlock(&pool.lock);
    pthread_attr_destroy(&attributes);
    return there;
}

long poot_grain(long units, long least) {
    long share = units / (8L * pool.threads);
    return share < least ? least : share & ~1L;
}

/* Whether some caller has the workers, and what follows is its own. Another one, which is the engine of another model on
   a thread of its own, does not wait for them: it works alone. */
static atomic_flag taken = ATOMIC_FLAG_INIT;

/* On a busy machine the system puts workers aside in the middle of a unit, for far longer than a job takes. Then the
   caller works alone for a while, for longer each time it happens again. */
enum { ALONE_LEAST = 32, ALONE_MOST = 8192 };
static int alone = 0, alone_next = ALONE_LEAST;

/* By the one caller that has the workers. */
static void run_together(kernel_t kernel, const void *job, long units, long grain) {
    uint64_t number = atomic_load_explicit(&pool.state, memory_order_relaxed) >> 2 * BITS;
    pool.job = job;
    pool.kernel = kernel;
    atomic_store_explicit(&pool.grain, grain, memory_order_relaxed);
    atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
    atomic_store(&pool.state, (number + 1) << 2 * BITS | (uint64_t)units << BITS);
    if (atomic_load(&pool.sleeping)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    take_units();
    int spins = 0;
    for (; atomic_load_explicit(&pool.done, memory_order_acquire) != units; spins++)
        spins < SPINS ? pause_() : (void)sched_yield();
    if (spins > SPINS) {
        alone = alone_next;
        alone_next = alone_next * 2 < ALONE_MOST ? alone_next * 2 : ALONE_MOST;
    } else if (alone_next > ALONE_LEAST)
        alone_next--;
}

void poot_run(kernel_t kernel, const void *job, long units, long grain) {
    int together = 0;
    if (pool.threads > 1 && !atomic_flag_test_and_set_explicit(&taken, memory_order_acquire)) {
        together = units > grain && !alone;
        if (together)
            run_together(kernel, job, units, grain);
        else if (alone)
            alone--;
        atomic_flag_clear_explicit(&taken, memory_order_release);
    }
    if (!together) kernel(job, 0, units);
}
