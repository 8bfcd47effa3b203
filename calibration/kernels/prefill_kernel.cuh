// Paged-attention prefill on Hopper tensor cores (wgmma), causal, grouped query heads, bf16.
//
// A work item is 128 rows = (128 / group) queries x all query heads of one KV head, and a range of 128-token KV
// tiles, walked from the diagonal backwards. One CTA an SM works through a list of items the host balanced. Its
// two producer warps fill three stages of K and of V by bulk tensor copies, one box per cache block and 64 head dimensions
// (128-byte swizzle), and run ahead into the next item; two consumer warpgroups of 64 rows overlap the softmax of
// a tile with the P V product of the tile before. (Making the warpgroups take turns in issuing their products was
// tried and was 2 to 10 % slower.) Where items are fewer than SMs the KV range is split and a second kernel combines.
#pragma once
#include "hopper.cuh"
#include "paged.cuh"

constexpr int kRows = 128, kTileTokens = 128, kStages = 3;
constexpr int kPrefillThreads = 384;  // one producer warpgroup, two consumer warpgroups

struct PrefillItem {
  int seq, kv_head, query0, tile_lo, tile_hi, split, splits;  // KV tiles [tile_lo, tile_hi)
  int past, queries, row;  // of the sequence: earlier tokens, queries, its first row in q and out
};

struct PrefillParams {
  const PrefillItem* items;
  const int* first_item;  // per CTA, and one past the last
  const int* table;       // [sequence][max_blocks]
  int max_blocks, block_size, cache_blocks, heads, kv_heads;
  int total_queries, max_splits;
  float scale_log2;
  bf16* out;       // [query][head][D]
  float* part_o;   // [split][query][head][D]
  float2* part_ml; // [split][query][head]
};

template <int D>
struct PrefillSmem {
  static constexpr int kHalf = kTileTokens * 128;       // bytes of 128 rows x 64 dimensions
  static constexpr int kTile = kHalf * (D / 64);
  static constexpr int kBytes = kTile * (1 + 2 * kStages) + 1024 + 128;
};

template <int D>
__device__ __forceinline__ void score_tile(float (&s)[64], uint32_t q, uint32_t k) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    uint32_t at = (i / 4) * PrefillSmem<D>::kHalf + (i % 4) * 32;
    wgmma_ss_n128(s, wgmma_descriptor(q + at, 16, 1024), wgmma_descriptor(k + at, 16, 1024), i > 0);
  }
  wgmma_commit();
}

template <int D>
__device__ __forceinline__ void value_tile(float (&o)[D / 2], const uint32_t (&p)[8][4], uint32_t v) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint64_t b = wgmma_descriptor(v + i * 2048, PrefillSmem<D>::kHalf, 1024);
    if constexpr (D == 128)
      wgmma_rs_n128(o, p[i], b);
    else
      wgmma_rs_n64(o, p[i], b);
  }
  wgmma_commit();
}

__device__ __forceinline__ void pack_scores(uint32_t (&p)[8][4], const float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      __nv_bfloat162 x = __floats2bfloat162_rn(s[i * 8 + r * 2], s[i * 8 + r * 2 + 1]);
      p[i][r] = *reinterpret_cast<uint32_t*>(&x);
    }
}

// Online softmax of one tile in place; `limit` is the last visible token of each of the thread's two rows.
__device__ __forceinline__ void softmax_tile(float (&s)[64], float (&peak)[2], float (&sum)[2], float (&keep)[2], int token0,
                                             const int (&limit)[2], bool masked, float scale) {
  int col = token0 + 2 * (threadIdx.x & 3);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = peak[r];
#pragma unroll
    for (int i = 0; i < 16; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[i * 4 + r * 2 + e];
        if (masked && col + i * 8 + e > limit[r]) x = -INFINITY;
        top = fmaxf(top, x);
      }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    float base = top == -INFINITY ? 0.0f : top * scale;
    keep[r] = exp2f(peak[r] * scale - base);
    peak[r] = top;
    float part = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[i * 4 + r * 2 + e];
        x = exp2f(fmaf(x, scale, -base));
        part += x;
      }
    sum[r] = sum[r] * keep[r] + part;
  }
}

// Barriers in shared memory: Q full, Q empty, then [kind][stage] full, then [kind][stage] empty (kind 0 = K, 1 = V).
constexpr int kBarriers = 2 + 4 * kStages;

template <int D>
struct Pipe {
  unsigned char* smem;
  uint64_t* bars;
  __device__ unsigned char* tile(int kind, int i) const {
    return smem + PrefillSmem<D>::kTile * (1 + kind * kStages + i % kStages);
  }
  __device__ uint64_t* full(int kind, int i) const { return &bars[2 + kind * kStages + i % kStages]; }
  __device__ uint64_t* empty(int kind, int i) const { return &bars[2 + (2 + kind) * kStages + i % kStages]; }
  __device__ void wait_full(int kind, int i) const { barrier_wait(full(kind, i), (i / kStages) & 1); }
  __device__ void wait_empty(int kind, int i) const {
    if (i >= kStages) barrier_wait(empty(kind, i), (i / kStages - 1) & 1);
  }
};

// One producer warp fills K (kind 0, and Q), another V (kind 1).
template <int D>
__device__ void produce(const PrefillParams& p, const CUtensorMap* qm, const CUtensorMap* map, int kind, Pipe<D> pipe) {
  using S = PrefillSmem<D>;
  const int lane = threadIdx.x & 31, group = p.heads / p.kv_heads;
  const int boxes = kTileTokens / p.block_size, box_bytes = p.block_size * 128;
  int base = 0;  // tiles of earlier items
  for (int n = p.first_item[blockIdx.x], item = 0; n < p.first_item[blockIdx.x + 1]; ++n, ++item) {
    const PrefillItem it = p.items[n];
    const int used = (it.past + it.queries + p.block_size - 1) / p.block_size;
    const int* table = p.table + static_cast<size_t>(it.seq) * p.max_blocks;
    const int tiles = it.tile_hi - it.tile_lo;
    auto block_of = [&](int i) {  // of this lane's box in the i-th tile; past the sequence's end: zero fill
      int b = (it.tile_hi - 1 - i) * boxes + lane;
      return lane < boxes && b < used && i < tiles ? table[b] : p.cache_blocks;
    };
    int block = block_of(0);
    if (kind == 0) {
      if (item) barrier_wait(&pipe.bars[1], (item - 1) & 1);
      if (lane == 0) {
        barrier_expect(&pipe.bars[0], (kRows / group) * group * 128 * (D / 64));
        for (int h = 0; h < D / 64; ++h)
          tma_load_3d(pipe.smem + h * S::kHalf, qm, &pipe.bars[0], h * 64, it.kv_head * group, it.row + it.query0);
      }
    }
    for (int i = 0; i < tiles; ++i) {
      int next = block_of(i + 1);  // its latency passes while waiting for the stage
      uint64_t* full = pipe.full(kind, base + i);
      pipe.wait_empty(kind, base + i);
      if (lane == 0) barrier_expect(full, S::kTile);
      __syncwarp();
      if (lane < boxes) {
        unsigned char* dst = pipe.tile(kind, base + i) + lane * box_bytes;
        for (int h = 0; h < D / 64; ++h) tma_load_4d(dst + h * S::kHalf, map, full, h * 64, it.kv_head, 0, block);
      }
      __syncwarp();
      block = next;
    }
    base += tiles;
  }
}

template <int D>
__device__ void write_rows(const PrefillParams& p, const PrefillItem& it, const float (&o)[D / 2], const float (&peak)[2],
                           const float (&sum)[2], int row0) {
  const int group = p.heads / p.kv_heads, lane = threadIdx.x & 31;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    int row = row0 + 8 * r, query = it.query0 + row / group;
    float total = sum[r];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (row >= (kRows / group) * group || query >= it.queries) continue;
    size_t at = static_cast<size_t>(it.row + query) * p.heads + it.kv_head * group + row % group;
    if (it.splits == 1) {
      float inverse = 1.0f / total;
#pragma unroll
      for (int i = 0; i < D / 8; ++i)
        *reinterpret_cast<__nv_bfloat162*>(p.out + at * D + i * 8 + 2 * (lane & 3)) =
            __floats2bfloat162_rn(o[i * 4 + r * 2] * inverse, o[i * 4 + r * 2 + 1] * inverse);
    } else {
      at += static_cast<size_t>(it.split) * p.total_queries * p.heads;
#pragma unroll
      for (int i = 0; i < D / 8; ++i)
        *reinterpret_cast<float2*>(p.part_o + at * D + i * 8 + 2 * (lane & 3)) = make_float2(o[i * 4 + r * 2], o[i * 4 + r * 2 + 1]);
      if ((lane & 3) == 0) p.part_ml[at] = make_float2(peak[r] * p.scale_log2, total);
    }
  }
}

// Slots past the sequence in its last block may hold anything, NaN too: zero those rows of V before use.
template <int D>
__device__ void clear_tail(unsigned char* v, int valid) {
  int thread = threadIdx.x - 128;
  for (int h = 0; h < D / 64; ++h)
    for (int x = valid * 128 + thread * 16; x < kTileTokens * 128; x += 256 * 16)
      *reinterpret_cast<uint4*>(v + h * PrefillSmem<D>::kHalf + x) = make_uint4(0, 0, 0, 0);
  fence_async_proxy();
  named_barrier(1, 256);
}

template <int D>
__device__ void consume_item(const PrefillParams& p, const PrefillItem& it, const Pipe<D>& pipe, int base, int item) {
  const int wg = threadIdx.x / 128 - 1, lane = threadIdx.x & 31, warp = (threadIdx.x & 127) >> 5;
  const int group = p.heads / p.kv_heads, row0 = wg * 64 + warp * 16 + (lane >> 2), past = it.past;
  const int kv_len = past + it.queries;
  const int limit[2] = {past + it.query0 + row0 / group, past + it.query0 + (row0 + 8) / group};
  const uint32_t q = smem_address(pipe.smem) + wg * 64 * 128;
  const bool signals = (threadIdx.x & 127) == 0;
  float s[64], o[D / 2], peak[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, keep[2];
  uint32_t prob[8][4];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) o[i] = 0;
  const int tiles = it.tile_hi - it.tile_lo, first = it.tile_hi - 1;
  const bool ragged = (first + 1) * kTileTokens > kv_len;

  barrier_wait(&pipe.bars[0], item & 1);
  pipe.wait_full(0, base);
  score_tile<D>(s, q, smem_address(pipe.tile(0, base)));
  wgmma_wait<0>();
  hold(s);
  if (signals) barrier_arrive(pipe.empty(0, base));
  softmax_tile(s, peak, sum, keep, first * kTileTokens, limit, true, p.scale_log2);
  pack_scores(prob, s);
  for (int i = 1; i < tiles; ++i) {
    if (i == 1 && ragged) {
      pipe.wait_full(1, base);
      clear_tail<D>(pipe.tile(1, base), kv_len - first * kTileTokens);
    }
    pipe.wait_full(0, base + i);
    score_tile<D>(s, q, smem_address(pipe.tile(0, base + i)));
    pipe.wait_full(1, base + i - 1);
    value_tile<D>(o, prob, smem_address(pipe.tile(1, base + i - 1)));
    wgmma_wait<1>();
    hold(s);
    if (signals) barrier_arrive(pipe.empty(0, base + i));
    const int tile = first - i;
    if ((tile + 1) * kTileTokens - 1 > past + it.query0)
      softmax_tile(s, peak, sum, keep, tile * kTileTokens, limit, true, p.scale_log2);
    else
      softmax_tile(s, peak, sum, keep, tile * kTileTokens, limit, false, p.scale_log2);
    wgmma_wait<0>();
    hold(s);
    hold(o);
    if (signals) barrier_arrive(pipe.empty(1, base + i - 1));
    pack_scores(prob, s);
#pragma unroll
    for (int x = 0; x < D / 2; ++x) o[x] *= keep[(x >> 1) & 1];
  }
  if (signals) barrier_arrive(&pipe.bars[1]);  // Q is no longer needed
  pipe.wait_full(1, base + tiles - 1);
  if (tiles == 1 && ragged) clear_tail<D>(pipe.tile(1, base), kv_len - first * kTileTokens);
  value_tile<D>(o, prob, smem_address(pipe.tile(1, base + tiles - 1)));
  wgmma_wait<0>();
  hold(o);
  if (signals) barrier_arrive(pipe.empty(1, base + tiles - 1));
  write_rows<D>(p, it, o, peak, sum, row0);
}

template <int D>
__device__ void consume(const PrefillParams& p, const Pipe<D>& pipe) {
  int base = 0;
  for (int n = p.first_item[blockIdx.x], item = 0; n < p.first_item[blockIdx.x + 1]; ++n, ++item) {
    const PrefillItem it = p.items[n];
    consume_item<D>(p, it, pipe, base, item);
    base += it.tile_hi - it.tile_lo;
  }
}

template <int D>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_kernel(const PrefillParams p, const __grid_constant__ CUtensorMap qm, const __grid_constant__ CUtensorMap km,
                   const __grid_constant__ CUtensorMap vm) {
  extern __shared__ unsigned char raw[];
  unsigned char* smem = raw + ((1024 - (smem_address(raw) & 1023)) & 1023);
  uint64_t* bars = reinterpret_cast<uint64_t*>(smem + PrefillSmem<D>::kTile * (1 + 2 * kStages));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kBarriers; ++i) {
      bool filled = i == 0 || (i >= 2 && i < 2 + 2 * kStages);  // one expect fills, two warpgroups empty
      barrier_init(&bars[i], filled ? 1 : 2);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
  }
  __syncthreads();
  const Pipe<D> pipe{smem, bars};
  if (threadIdx.x < 128) {
    registers_down<40>();
    if (threadIdx.x < 64) produce<D>(p, &qm, threadIdx.x < 32 ? &km : &vm, threadIdx.x / 32, pipe);
  } else {
    registers_up<232>();
    consume<D>(p, pipe);
  }
}

// One warp a (query, head): weigh the splits' partial results by exp2(maximum) and sum.
template <int D>
__global__ void combine_kernel(const PrefillParams p, int splits) {
  int lane = threadIdx.x & 31;
  size_t n = static_cast<size_t>(p.total_queries) * p.heads, at = (blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x) / 32;
  if (at >= n) return;
  float2 ml = lane < splits ? p.part_ml[lane * n + at] : make_float2(-INFINITY, 0);
  float peak = ml.x;
  for (int o = 16; o; o >>= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, o));
  float w = exp2f(ml.x - peak), sum = w * ml.y;
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  float acc[D / 32] = {};
#pragma unroll 4
  for (int s = 0; s < splits; ++s) {
    float f = __shfl_sync(~0u, w, s);
    if (f == 0) continue;  // a split that saw no token of this row holds nothing
#pragma unroll
    for (int i = 0; i < D / 32; ++i) acc[i] += f * p.part_o[(s * n + at) * D + lane + 32 * i];
  }
#pragma unroll
  for (int i = 0; i < D / 32; ++i) p.out[at * D + lane + 32 * i] = __float2bfloat16(acc[i] / sum);
}
