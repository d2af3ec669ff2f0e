// From the logits of one video to a code: temperature, top-k, top-p and one uniform number. decoding/sampling.py says the
// same in torch.
#pragma once
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
        for (long i = n / 2 - 1; i >= 0; i--) sink(i);
    }
    // The i-th; those that have left stand at the end, the first of them last.
    const Candidate& operator[](long i) {
        while (n - left <= i) {
            Candidate first = all[0];
            all[0] = all[--left];
            all[left] = first;
            sink(0);
        }
        return all[n - 1 - i];
    }

   private:
    void sink(long i) {
        Candidate sunk = all[i];
        for (long child = 2 * i + 1; child < left; child = 2 * i + 1) {
            if (child + 1 < left && after(all[child], all[child + 1])) child++;
            if (!after(sunk, all[child])) break;
            all[i] = all[child];
            i = child;
        }
        all[i] = sunk;
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
    float top = all[best].logit;
    Ordered ordered(all, n);
    float least = how.top_k > 0 && how.top_k < n ? ordered[how.top_k - 1].logit : -__builtin_inff();
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
