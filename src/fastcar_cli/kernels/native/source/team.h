// The threads that share a pass: one leads, the others help with its stages.
#pragma once
#include <stdint.h>

// Nanoseconds of a monotonic clock.
int64_t monotonic_ns();

// The thread team of one pass, held by its leader. The leader is its only member where the helpers serve another pass
// or other work wants the cores (see team.cpp).
struct Team {
    explicit Team(int64_t threads);
    ~Team();
    Team(const Team&) = delete;

    // Calls work(context, i) for every i below chunks, in any order and on any member; returns when all are done.
    void run(int64_t chunks, void (*work)(void*, int64_t), void* context);

    int64_t members;
};

namespace {

// Calls body(i) for every i below chunks, shared by the team. A chunk's result must not depend on who computes it.
template <class Body>
void parallel_for(Team& team, int64_t chunks, Body&& body) {
    if (team.members == 1 || chunks == 1) {
        for (int64_t i = 0; i < chunks; i++) body(i);
        return;
    }
    team.run(chunks, [](void* context, int64_t i) { (*static_cast<decltype(&body)>(context))(i); }, &body);
}

}  // namespace
