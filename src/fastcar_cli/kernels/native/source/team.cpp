// A leader publishes a stage at a time, in chunks that every member claims as it gets to them. Each begins with a share
// of neighbouring chunks, so that it reads memory in order, and then takes from the shares of others. A helper that
// comes late, or never, costs time but blocks nothing; only a chunk that is claimed must be waited for. Where that takes
// long, the helper has lost its core to other work, and where the leader lost its own, the two may share one: then the
// leader goes alone for a while and tries again later.
#include "team.h"

#include <stdint.h>

#ifdef _WIN32

// One thread: the pool is written for POSIX threads.
Team::Team(long) : members(1) {}
Team::~Team() {}
void Team::run(long chunks, void (*work)(void*, long), void* context) {
    for (long i = 0; i < chunks; i++) work(context, i);
}

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr long MOST = 64;
constexpr int64_t MICROSECOND = 1000, MILLISECOND = 1000 * MICROSECOND;
// A helper without work looks for some this long before it sleeps.
constexpr int64_t LOOKS = 300 * MICROSECOND;
// No chunk takes this long on a core of its own; a lost core is lost for some milliseconds.
constexpr int64_t STALL = 400 * MICROSECOND;
// How long the leader goes alone after a stall; doubled with each stall that follows soon.
constexpr int64_t SHORTEST = 50 * MILLISECOND, LONGEST = 1600 * MILLISECOND;
constexpr timespec NAP{0, 100 * MICROSECOND};
constexpr int LOOKS_A_CLOCK = 64;

int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// How often the calling thread has lost its core to another.
long losses() {
#ifdef RUSAGE_THREAD
    rusage usage;
    if (!getrusage(RUSAGE_THREAD, &usage)) return usage.ru_nivcsw;
#endif
    return 0;
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

template <class T>
T load(const T& at) {
    return __atomic_load_n(&at, __ATOMIC_SEQ_CST);
}
template <class T>
void store(T& at, T value) {
    __atomic_store_n(&at, value, __ATOMIC_SEQ_CST);
}

// A member's share of the open stage: number of the stage above, chunks left below. The number keeps a member that
// was held up from claiming a chunk of a stage it no longer knows.
struct alignas(64) Ticket {
    uint64_t value;
};
constexpr uint64_t LEFT = 0xFFFFFFFF;

struct alignas(64) Bed {
    pthread_mutex_t mutex;
    pthread_cond_t woken;
    int asleep;
};

Ticket tickets[MOST];
Bed beds[MOST];
alignas(64) long done;
// The open stage; written before its tickets and read after a claim, which keeps it open.
alignas(64) long members, chunks;
void (*work)(void*, long);
void* context;
uint64_t stage;

// The process that a pass is open in, or 0.
alignas(64) pid_t taken;
long helpers;
// Whose helpers they are: a forked child has none of its parent's threads.
pid_t process;
int64_t alone_until, alone_for;
long losses_before;

// Other work wants the cores: the leader goes alone for a while.
void give_way() {
    int64_t t = now();
    alone_for = t - alone_until > 4 * alone_for ? SHORTEST : 2 * alone_for;
    if (alone_for > LONGEST) alone_for = LONGEST;
    alone_until = t + alone_for;
}

// A chunk of the open stage that is the caller's now, or -1.
long claim(long member) {
    long of = __atomic_load_n(&members, __ATOMIC_RELAXED);
    for (long k = 0; member < of && k < of; k++) {
        long owner = (member + k) % of;
        uint64_t ticket = load(tickets[owner].value);
        while (ticket & LEFT) {
            if (__atomic_compare_exchange_n(&tickets[owner].value, &ticket, ticket - 1, false, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST))
                return chunks * (owner + 1) / members - long(ticket & LEFT);
        }
    }
    return -1;
}

bool open_to(long member) {
    long of = __atomic_load_n(&members, __ATOMIC_RELAXED);
    for (long owner = 0; member < of && owner < of; owner++)
        if (load(tickets[owner].value) & LEFT) return true;
    return false;
}

bool take(long member) {
    bool any = false;
    for (long i = claim(member); i >= 0; i = claim(member)) {
        work(context, i);
        __atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST);
        any = true;
    }
    return any;
}

void rest(long member) {
    Bed& bed = beds[member];
    store(bed.asleep, 1);
    // The leader opens a stage before it looks who sleeps, so one of the two sees the other.
    if (open_to(member)) {
        store(bed.asleep, 0);
        return;
    }
    pthread_mutex_lock(&bed.mutex);
    while (load(bed.asleep)) pthread_cond_wait(&bed.woken, &bed.mutex);
    pthread_mutex_unlock(&bed.mutex);
}

void wake(long member) {
    Bed& bed = beds[member];
    if (!load(bed.asleep)) return;
    pthread_mutex_lock(&bed.mutex);
    store(bed.asleep, 0);
    pthread_cond_signal(&bed.woken);
    pthread_mutex_unlock(&bed.mutex);
}

void* help(void* member) {
    for (;;) {
        int64_t since = now();
        for (int looks = 0; !take(long(member)); relax()) {
            if (++looks % LOOKS_A_CLOCK) continue;
            // The leader may wait for this very core.
            sched_yield();
            if (now() - since > LOOKS) {
                rest(long(member));
                break;
            }
        }
    }
    return nullptr;
}

// No pass and no helper yet.
void start() {
    for (long i = 0; i < MOST; i++) {
        tickets[i].value = 0;
        beds[i].asleep = 0;
        pthread_mutex_init(&beds[i].mutex, nullptr);
        pthread_cond_init(&beds[i].woken, nullptr);
    }
    helpers = 0;
    alone_until = alone_for = 0;
    process = getpid();
}

// Start helpers until there are `wanted`, or as many as the system allows. They leave signals to the program's threads.
void hire(long wanted) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_t options;
    pthread_attr_init(&options);
    pthread_attr_setdetachstate(&options, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&options, 512 << 10);
    for (pthread_t thread; helpers < wanted; helpers++)
        if (pthread_create(&thread, &options, help, reinterpret_cast<void*>(helpers + 1))) break;
    pthread_attr_destroy(&options);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

}  // namespace

Team::Team(long threads) : members(1) {
    if (threads <= 1) return;
    // A pass that was open when its process forked is none of the child's.
    int free = 0;
    while (!__atomic_compare_exchange_n(&taken, &free, getpid(), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        if (free == getpid()) return;
    if (process != getpid()) start();
    if (threads > MOST) threads = MOST;
    if (helpers < threads - 1) hire(threads - 1);
    if (threads > helpers + 1) threads = helpers + 1;
    if (threads == 1 || now() < alone_until) {
        store(taken, pid_t(0));
        return;
    }
    members = threads;
    losses_before = losses();
}

Team::~Team() {
    if (members == 1) return;
    if (losses() > losses_before) give_way();
    store(taken, pid_t(0));
}

void Team::run(long count, void (*body)(void*, long), void* with) {
    ::chunks = count;
    ::work = body;
    ::context = with;
    __atomic_store_n(&::members, members, __ATOMIC_RELAXED);
    store(done, 0L);
    stage++;
    for (long i = 0; i < members; i++)
        store(tickets[i].value, stage << 32 | uint64_t(count * (i + 1) / members - count * i / members));
    for (long i = 1; i < members; i++) wake(i);
    take(0);
    if (load(done) == count) return;
    int64_t since = now();
    bool stalled = false;
    for (int looks = 0; load(done) < count; relax()) {
        // Asleep, the leader keeps its claim to a core.
        if (stalled) nanosleep(&NAP, nullptr);
        if (++looks % LOOKS_A_CLOCK == 0) stalled = stalled || now() - since > STALL;
    }
    if (!stalled) return;
    give_way();
    members = 1;
    store(taken, pid_t(0));
}

#endif
