// From the logits of one video to a code: temperature, top-k, top-p and one uniform number. decoding/sampling.py says the
// same in torch.
#pragma once
#include <algorithm>

#include "structs.h"
#include "vectors.h"

namespace {

// A code that may be drawn: its logit over the temperature, and its probability times a constant.
struct Candidate {
    float logit, mass;
    int32_t code;
};

// Whether a comes after b in the order of draws: by falling logit, equals by code.
inline bool after(const Candidate& a, const Candidate& b) {
    return a.logit < b.logit || (a.logit == b.logit && a.code > b.code);
}

// Candidates leave a heap in their order, only as far as the draw has to look: likely codes come first.
struct Ordered {
    Candidate* all;
    long n, left;

    Ordered(Candidate* candidates, long count) : all(candidates), n(count), left(count) {
        std::make_heap(all, all + n, after);
    }
    // The i-th; those that have left stand at the end, the first of them last.
    const Candidate& operator[](long i) {
        for (; n - left <= i; left--) std::pop_heap(all, all + left, after);
        return all[n - 1 - i];
    }
};

// The code that `uniform` in [0, 1) draws from n logits; -1 where a logit is NaN or infinite. `all` is memory.
int64_t sample(const float* logits, long n, float uniform, const Sampling& how, Candidate* all) {
    long best = 0;
    for (long i = 0; i < n; i++) {
        if (!(logits[i] < __builtin_inff())) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    if (how.temperature == 0) return best;
    for (long i = 0; i < n; i++) all[i] = Candidate{logits[i] / float(how.temperature), 0, int32_t(i)};
    float top = all[best].logit, least = -__builtin_inff();
    if (how.top_k > 0 && how.top_k < n) {
        std::nth_element(all, all + how.top_k - 1, all + n,
                         [](const Candidate& a, const Candidate& b) { return after(b, a); });
        least = all[how.top_k - 1].logit;
    }
    double whole = 0;
    long count = 0;
    for (long i = 0; i < n; i += LANES) {
        float below[LANES] = {};
        long lanes = n - i < LANES ? n - i : LANES;
        for (long k = 0; k < lanes; k++) below[k] = all[i + k].logit - top;
        Floats masses = exp(load(below));
        for (long k = 0; k < lanes; k++) {
            // Equals of the k-th largest stay; `exp` ends at -87.
            if (all[i + k].logit < least || below[k] < -87.0f) continue;
            all[i + k].mass = masses[k];
            whole += masses[k];
            count++;
        }
    }
    Ordered ordered(all, n);
    double kept = whole;
    if (how.top_p < 1) {
        // The candidate that crosses top-p stays, so at least one does.
        long i = 0;
        for (kept = 0; i < count && (i == 0 || kept < how.top_p * whole); i++) kept += ordered[i].mass;
        count = i;
    }
    double sum = 0;
    for (long i = 0; i < count; i++) {
        sum += ordered[i].mass;
        if (sum > uniform * kept) return ordered[i].code;
    }
    return ordered[count - 1].code;
}

}  // namespace
