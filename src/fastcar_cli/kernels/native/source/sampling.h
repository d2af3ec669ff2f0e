// Samples a code from the logits of one video: temperature, top-k, top-p and one uniform number. decoding/sampling.py
// does the same in torch.
#pragma once
#include "structs.h"
#include "vectors.h"

namespace {

// A code that may be drawn: its logit divided by the temperature, and its unnormalised probability.
struct Candidate {
    float logit, mass;
    int32_t code;
};

// Whether a comes after b in sampling order: by descending logit, equal logits by ascending code.
inline bool comes_after(const Candidate& a, const Candidate& b) {
    return a.logit < b.logit || (a.logit == b.logit && a.code > b.code);
}

// Candidates in sampling order. A heap sorts only as many as the draw looks at, and likely codes come first.
struct SortedCandidates {
    Candidate* all;
    long n, in_heap;

    SortedCandidates(Candidate* candidates, long count) : all(candidates), n(count), in_heap(count) {
        for (long i = n / 2 - 1; i >= 0; i--) sink(i);
    }
    // The i-th candidate. Those taken from the heap are stored behind it, the first of them last.
    const Candidate& operator[](long i) {
        while (n - in_heap <= i) {
            Candidate first = all[0];
            all[0] = all[--in_heap];
            all[in_heap] = first;
            sink(0);
        }
        return all[n - 1 - i];
    }

   private:
    void sink(long i) {
        Candidate moved = all[i];
        for (long child = 2 * i + 1; child < in_heap; child = 2 * i + 1) {
            if (child + 1 < in_heap && comes_after(all[child], all[child + 1])) child++;
            if (!comes_after(moved, all[child])) break;
            all[i] = all[child];
            i = child;
        }
        all[i] = moved;
    }
};

// The code that `uniform` in [0, 1) draws from n logits; -1 where a logit is NaN or infinite. all: memory for n
// candidates.
int64_t sample(const float* logits, long n, float uniform, const Sampling& settings, double top_p, Candidate* all) {
    long best = 0;
    for (long i = 0; i < n; i++) {
        if (!(logits[i] < __builtin_inff())) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    if (settings.temperature == 0) return best;
    for (long i = 0; i < n; i++) all[i] = Candidate{logits[i] / float(settings.temperature), 0, int32_t(i)};
    float largest = all[best].logit;
    SortedCandidates sorted(all, n);
    float cutoff = settings.top_k > 0 && settings.top_k < n ? sorted[settings.top_k - 1].logit : -__builtin_inff();
    double total_mass = 0;
    long count = 0;
    for (long i = 0; i < n; i += LANES) {
        float relative[LANES] = {};
        long lanes = n - i < LANES ? n - i : LANES;
        for (long k = 0; k < lanes; k++) relative[k] = all[i + k].logit - largest;
        Floats masses = exp(load(relative));
        for (long k = 0; k < lanes; k++) {
            // Logits equal to the k-th largest stay; `exp` does not go below -87.
            if (all[i + k].logit < cutoff || relative[k] < -87.0f) continue;
            all[i + k].mass = masses[k];
            total_mass += masses[k];
            count++;
        }
    }
    double kept = total_mass;
    if (top_p < 1) {
        // The candidate that crosses top-p stays, so at least one does.
        long i = 0;
        double least = top_p * total_mass;
        for (kept = 0; i < count && (i == 0 || kept < least || (settings.strict && kept == least)); i++)
            kept += sorted[i].mass;
        count = i;
    }
    double sum = 0;
    for (long i = 0; i < count; i++) {
        sum += sorted[i].mass;
        if (sum > uniform * kept) return sorted[i].code;
    }
    return sorted[count - 1].code;
}

}  // namespace
