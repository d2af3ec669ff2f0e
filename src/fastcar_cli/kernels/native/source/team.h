// The threads that share a pass: one leads, the others help with its stages.
#pragma once
#include <stdint.h>

// Nanoseconds of a clock that only goes on.
int64_t now();

// The team of one pass, held by its leader. It has one member, the leader, where the helpers serve another pass or
// where other work wants the cores (see team.cpp).
struct Team {
    explicit Team(long threads);
    ~Team();
    Team(const Team&) = delete;

    // work(context, i) for every i below chunks, in any order and on any member; back when all are done.
    void run(long chunks, void (*work)(void*, long), void* context);

    long members;
};

namespace {

// body(i) for every i below chunks, shared by the team. What a chunk computes must not depend on who computes it.
template <class Body>
void share(Team& team, long chunks, Body&& body) {
    if (team.members == 1 || chunks == 1) {
        for (long i = 0; i < chunks; i++) body(i);
        return;
    }
    team.run(chunks, [](void* context, long i) { (*static_cast<decltype(&body)>(context))(i); }, &body);
}

}  // namespace
