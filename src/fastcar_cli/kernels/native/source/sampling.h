// Samples a code from the logits of one video: temperature, top-k, top-p and one uniform number. decoding/sampling.py
// does the same in torch.
#pragma once
#include <stdlib.h>

#include "structs.h"
#include "vectors.h"

namespace {

// A code that may be drawn: its logit divided by the temperature, and its unnormalised probability.
struct Candidate {
    float logit, mass;
    int32_t code;
};

// Orders candidates as they are sampled, for qsort: by descending logit, equal logits by ascending code.
inline int compare_candidates(const void* first, const void* second) {
    auto &a = *static_cast<const Candidate*>(first), &b = *static_cast<const Candidate*>(second);
    if (a.logit != b.logit) return a.logit > b.logit ? -1 : 1;
    return a.code < b.code ? -1 : a.code > b.code;
}

// The candidates of n logits by how far they lie below the largest, in buckets. A draw walks over the buckets' masses
// and sorts only the bucket in which it ends: sorting 64,000 codes takes longer than computing their logits.
class Buckets {
   public:
    // memory: for n candidates. The largest logit is finite, none is NaN.
    Buckets(const float* logits, int64_t n, float largest, float temperature, Candidate* memory)
        : logits_(logits), n_(n), largest_(largest / temperature), temperature_(temperature), memory_(memory) {
        for_each([&](const Candidate& c, int bucket) {
            masses_[bucket] += c.mass;
            counts_[bucket]++;
        });
    }

    // Leaves only the first k candidates and those whose logits equal the k-th one's.
    void leave_first(int64_t k) {
        int b = 0;
        for (; k > counts_[b]; b++) k -= counts_[b];
        int64_t count = members(b);
        float least = memory_[k - 1].logit;
        masses_[b] = 0;
        for (int64_t i = 0; i < count; i++)
            if (memory_[i].logit >= least) masses_[b] += memory_[i].mass;
        for (int later = b + 1; later < COUNT; later++) masses_[later] = 0;
        least_ = least;
    }

    double mass() const {
        double sum = 0;
        for (double mass : masses_) sum += mass;
        return sum;
    }

    // The first candidate for which enough(sum) is true, where `sum` is the mass up to it, or else the last one that
    // has mass.
    template <class F>
    Candidate find(F enough, double& sum) {
        int last = COUNT - 1;
        while (last > 0 && masses_[last] == 0) last--;
        Candidate found{};
        sum = 0;
        for (int b = 0; b <= last; b++) {
            if (b < last && !enough(sum + masses_[b])) {
                sum += masses_[b];
                continue;
            }
            int64_t count = members(b);
            for (int64_t i = 0; i < count && memory_[i].mass > 0; i++) {
                found = memory_[i];
                sum += found.mass;
                if (enough(sum)) return found;
            }
        }
        return found;
    }

   private:
    // Buckets, and how many of them a difference of 1 in a logit crosses. The last one has all that lie further below.
    static constexpr int COUNT = 1024, A_UNIT = 32;

    template <class F>
    INLINE void for_each(F f) const {
        for (int64_t i = 0; i < n_; i += LANES) {
            int64_t lanes = n_ - i < LANES ? n_ - i : LANES;
            float scaled[LANES] = {}, masses[LANES];
            int32_t buckets[LANES];
            memcpy(scaled, logits_ + i, lanes * sizeof(float));
            Floats logit = load(scaled) / temperature_, below = largest_ - logit, place = below * float(A_UNIT);
            // `exp` does not go below -87.
            store(masses, below > 87.0f ? Floats{} : exp(-below));
            store(scaled, logit);
            place = place < float(COUNT - 1) ? place : float(COUNT - 1) - Floats{};
            Ints bucket = __builtin_convertvector(place, Ints);
            memcpy(buckets, &bucket, sizeof buckets);
            for (int64_t k = 0; k < lanes; k++) f(Candidate{scaled[k], masses[k], int32_t(i + k)}, buckets[k]);
        }
    }

    // Writes those of a bucket to memory_, sorted; returns how many they are.
    int64_t members(int of) const {
        int64_t count = 0;
        for_each([&](const Candidate& c, int bucket) {
            if (bucket == of && c.logit >= least_) memory_[count++] = c;
        });
        qsort(memory_, count, sizeof(Candidate), compare_candidates);
        return count;
    }

    const float* logits_;
    int64_t n_;
    float largest_, temperature_, least_ = -__builtin_inff();
    Candidate* memory_;
    double masses_[COUNT] = {};
    int32_t counts_[COUNT] = {};
};

// The code that `uniform` in [0, 1) draws from n logits; -1 where a logit is NaN or infinite. memory: for n candidates.
int64_t sample(const float* logits, int64_t n, float uniform, const Sampling& settings, double top_p,
               Candidate* memory) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(logits[i] < __builtin_inff())) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    if (settings.temperature == 0) return best;
    Buckets buckets(logits, n, logits[best], float(settings.temperature), memory);
    if (settings.top_k > 0 && settings.top_k < n) buckets.leave_first(settings.top_k);
    double total = buckets.mass(), sum;
    if (top_p < 1) {
        // The candidate that crosses top-p stays, so at least one does.
        double least = top_p * total;
        buckets.find([&](double mass) { return settings.strict ? mass > least : mass >= least; }, total);
    }
    return buckets.find([&](double mass) { return mass > uniform * total; }, sum).code;
}

}  // namespace
