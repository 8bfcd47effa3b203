// Paged-attention decode: one query token a sequence, grouped query heads, bf16 or e4m3 KV cache.
//
// Every warp is its own flash-decoding loop over tiles of its chunk: KV goes straight from global memory to the
// registers of mma.m16n8k16, with no shared memory on the way. The transposed products are used, S' = K Q' and
// O' = V' P', so that the 16-row side of the instruction holds tokens and head dimensions and the 8-column side
// the query heads of one KV head (at most 8). A lane loads 16 consecutive bytes; the inner-dimension order that
// follows is applied to Q as well, so the dot products are unchanged.
//
// A sequence is cut into chunks (split-K); one CTA of 4 warps takes one chunk of one KV head. Partial results
// carry (maximum, sum); the CTA that finishes a (sequence, KV head) last combines them.
#pragma once
#include <type_traits>

#include "paged.cuh"

constexpr int kDecodeWarps = 4;
constexpr int kMaxSplits = 256;
constexpr int kMaxGroup = 8;

struct Chunk {
  int seq, start, end, first, count;  // tokens [start, end); the sequence's chunks are first .. first+count-1
};

struct DecodeParams {
  const bf16* q;  // [sequence][head][head size]
  const void *k, *v;
  const int* table;  // [sequence][max_blocks]
  int max_blocks, block_shift, heads, kv_heads;
  const Chunk* chunks;
  float* part_o;   // [chunk][KV head][8][head size]
  float2* part_ml; // [chunk][KV head][8] = (maximum in log2 units, sum)
  int* counters;   // [sequence][KV head], zero before and after
  bf16* out;       // [sequence][head][head size]
  float scale_log2, v_scale;
};

template <typename KV, int D>
struct DecodeTile {
  static constexpr bool kFp8 = sizeof(KV) == 1;
  static constexpr int kSub = kFp8 ? 2 : 1;           // 16-token subtiles a step
  static constexpr int kTokens = 16 * kSub;           // tokens a warp takes in one step
  static constexpr int kPerLoad = 16 / sizeof(KV);    // K elements in a lane's 16-byte load
  static constexpr int kChunksK = D / (4 * kPerLoad); // 16-byte K loads a lane and token row
  static constexpr int kPerLoadV = (D / 8 < kPerLoad) ? D / 8 : kPerLoad;
  static constexpr int kWordsV = kPerLoadV * sizeof(KV) / 4;
  static constexpr int kChunksV = D / (8 * kPerLoadV);
  static constexpr int kStep = kTokens * kDecodeWarps;  // chunk sizes are multiples of this
};

template <int WORDS>
__device__ __forceinline__ void load_words(uint32_t (&r)[WORDS], const void* p, bool valid) {
  if constexpr (WORDS == 4) {
    if (valid)
      asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(p));
    else
      r[0] = r[1] = r[2] = r[3] = 0;
  } else {
    if (valid)
      asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.b32 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "l"(p));
    else
      r[0] = r[1] = 0;
  }
}

template <bool FP8>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
  if constexpr (FP8)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t e4m3_pair_to_half2(uint32_t low16) {
  uint32_t h;
  asm("{.reg .b16 t; cvt.u16.u32 t, %1; cvt.rn.f16x2.e4m3x2 %0, t;}" : "=r"(h) : "r"(low16));
  return h;
}

__device__ __forceinline__ uint32_t transpose8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

template <bool FP8>
__device__ __forceinline__ uint32_t pack_pair(float lo, float hi) {
  if constexpr (FP8) {
    __half2 h = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<uint32_t*>(&h);
  } else {
    __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<uint32_t*>(&h);
  }
}

// Registers of one warp's step and the loads that fill them.
template <typename KV, int D>
struct DecodeRegs {
  using T = DecodeTile<KV, D>;
  uint32_t k[T::kSub][2][T::kChunksK][4];
  uint32_t v[T::kSub][4][T::kChunksV][T::kWordsV];

  __device__ __forceinline__ void load_k(const KV* base, const size_t (&at)[T::kSub], int row, int t0, int end) {
    int g = (threadIdx.x & 31) >> 2, j = threadIdx.x & 3;
#pragma unroll
    for (int s = 0; s < T::kSub; ++s)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int token = g + 8 * h;
        const KV* p = base + at[s] + static_cast<size_t>(token) * row + j * T::kPerLoad;
#pragma unroll
        for (int c = 0; c < T::kChunksK; ++c)
          load_words<4>(k[s][h][c], p + c * 4 * T::kPerLoad, t0 + 16 * s + token < end);
      }
  }
  __device__ __forceinline__ void load_v(const KV* base, const size_t (&at)[T::kSub], int row, int t0, int end) {
    int g = (threadIdx.x & 31) >> 2, j = threadIdx.x & 3;
#pragma unroll
    for (int s = 0; s < T::kSub; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int token = 2 * j + (i & 1) + 8 * (i >> 1);
        const KV* p = base + at[s] + static_cast<size_t>(token) * row + g * T::kPerLoadV;
#pragma unroll
        for (int c = 0; c < T::kChunksV; ++c)
          load_words<T::kWordsV>(v[s][i][c], p + c * 8 * T::kPerLoadV, t0 + 16 * s + token < end);
      }
  }
  // S' of one subtile: rows are tokens, columns query heads.
  template <int QK>
  __device__ __forceinline__ void scores(float (&out)[4], int s, const uint32_t (&q)[QK][2]) const {
    float a[4] = {0, 0, 0, 0}, b[4] = {0, 0, 0, 0};
#pragma unroll
    for (int c = 0; c < T::kChunksK; ++c)
#pragma unroll
      for (int w = 0; w < T::kPerLoad / 4; ++w) {
        int step = c * (T::kPerLoad / 4) + w;
        uint32_t r0, r1, r2, r3;
        if constexpr (T::kFp8) {
          r0 = e4m3_pair_to_half2(k[s][0][c][w]), r2 = e4m3_pair_to_half2(k[s][0][c][w] >> 16);
          r1 = e4m3_pair_to_half2(k[s][1][c][w]), r3 = e4m3_pair_to_half2(k[s][1][c][w] >> 16);
        } else {
          r0 = k[s][0][c][2 * w], r2 = k[s][0][c][2 * w + 1];
          r1 = k[s][1][c][2 * w], r3 = k[s][1][c][2 * w + 1];
        }
        mma<T::kFp8>(step & 1 ? b : a, r0, r1, r2, r3, q[step][0], q[step][1]);
      }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = a[i] + b[i];
  }
  // O' += V' P' of one subtile: rows are head dimensions, columns query heads.
  __device__ __forceinline__ void accumulate(float (&o)[D / 16][4], int s, uint32_t p0, uint32_t p1) const {
#pragma unroll
    for (int c = 0; c < T::kChunksV; ++c)
#pragma unroll
      for (int w = 0; w < T::kWordsV; ++w) {
        uint32_t x0 = v[s][0][c][w], x1 = v[s][1][c][w], x2 = v[s][2][c][w], x3 = v[s][3][c][w];
        if constexpr (T::kFp8) {
#pragma unroll
          for (int u = 0; u < 2; ++u) {
            uint32_t lo = __byte_perm(x0, x1, u ? 0x7362 : 0x5140), hi = __byte_perm(x2, x3, u ? 0x7362 : 0x5140);
            mma<true>(o[(c * T::kWordsV + w) * 2 + u], e4m3_pair_to_half2(lo), e4m3_pair_to_half2(lo >> 16),
                      e4m3_pair_to_half2(hi), e4m3_pair_to_half2(hi >> 16), p0, p1);
          }
        } else {
          mma<false>(o[c * T::kWordsV + w], __byte_perm(x0, x1, 0x5410), __byte_perm(x0, x1, 0x7632),
                     __byte_perm(x2, x3, 0x5410), __byte_perm(x2, x3, 0x7632), p0, p1);
        }
      }
  }
};

// Weighted sum over the splits of one (sequence, KV head): weights of all splits first, then one warp a head.
template <int D>
__device__ void combine(const DecodeParams& p, const Chunk& c, int kv_head, float* weight) {
  int group = p.heads / p.kv_heads, lane = threadIdx.x & 31;
  for (int h = threadIdx.x >> 5; h < group; h += kDecodeWarps) {
    float* w = weight + h * kMaxSplits;
    auto ml = [&](int i) { return __ldcg(&p.part_ml[(static_cast<size_t>(c.first + i) * p.kv_heads + kv_head) * kMaxGroup + h]); };
    float peak = -INFINITY, sum = 0;
    for (int i = lane; i < c.count; i += 32) peak = fmaxf(peak, ml(i).x);
    for (int o = 16; o; o >>= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, o));
    for (int i = lane; i < c.count; i += 32) {
      float2 x = ml(i);
      w[i] = exp2f(x.x - peak);
      sum += x.y * w[i];
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    __syncwarp();
    constexpr int kPer = D / 32;
    float acc[kPer] = {};
    const float* base = p.part_o + ((static_cast<size_t>(c.first) * p.kv_heads + kv_head) * kMaxGroup + h) * D + lane * kPer;
    size_t stride = static_cast<size_t>(p.kv_heads) * kMaxGroup * D;
#pragma unroll 8
    for (int i = 0; i < c.count; ++i) {
      if constexpr (kPer == 4) {
        float4 x = __ldcg(reinterpret_cast<const float4*>(base + i * stride));
        acc[0] += w[i] * x.x, acc[1] += w[i] * x.y, acc[2] += w[i] * x.z, acc[3] += w[i] * x.w;
      } else {
        float2 x = __ldcg(reinterpret_cast<const float2*>(base + i * stride));
        acc[0] += w[i] * x.x, acc[1] += w[i] * x.y;
      }
    }
    bf16* out = p.out + (static_cast<size_t>(c.seq) * p.heads + kv_head * group + h) * D + lane * kPer;
#pragma unroll
    for (int i = 0; i < kPer; ++i) out[i] = __float2bfloat16(acc[i] / sum * p.v_scale);
  }
}

// Merge the four warps in shared memory, then write the result, or a partial one and perhaps combine.
template <int D>
__device__ void finish_chunk(const DecodeParams& p, const Chunk& c, int chunk, int kv_head, float* smem) {
  int group = p.heads / p.kv_heads;
  float* so = smem;                                 // [warp][8][D]
  float* sm = smem + kDecodeWarps * kMaxGroup * D;  // [warp][8] maximum, then [warp][8] sum
  float* sl = sm + kDecodeWarps * kMaxGroup;
  __syncthreads();
  for (int x = threadIdx.x; x < group * D; x += blockDim.x) {
    int h = x / D, d = x % D;
    float peak = -INFINITY, sum = 0, o = 0;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) peak = fmaxf(peak, sm[w * kMaxGroup + h]);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      float f = exp2f(sm[w * kMaxGroup + h] - peak);
      sum += f * sl[w * kMaxGroup + h];
      o += f * so[(w * kMaxGroup + h) * D + d];
    }
    if (c.count == 1) {
      p.out[(static_cast<size_t>(c.seq) * p.heads + kv_head * group + h) * D + d] = __float2bfloat16(o / sum * p.v_scale);
    } else {
      size_t at = (static_cast<size_t>(chunk) * p.kv_heads + kv_head) * kMaxGroup + h;
      p.part_o[at * D + d] = o;
      if (d == 0) p.part_ml[at] = make_float2(peak, sum);
    }
  }
  if (c.count == 1) return;
  __shared__ int last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int* counter = &p.counters[c.seq * p.kv_heads + kv_head];
    last = atomicAdd(counter, 1) == c.count - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  combine<D>(p, c, kv_head, smem);
}

template <int D>
constexpr int kDecodeSmemFloats = std::max(kDecodeWarps* kMaxGroup*(D + 2), kMaxGroup* kMaxSplits);

template <typename KV, int D>
__global__ void __launch_bounds__(kDecodeWarps * 32, 3) decode_kernel(const DecodeParams p) {
  using T = DecodeTile<KV, D>;
  __shared__ float smem[kDecodeSmemFloats<D>];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, j = lane & 3;
  const int kv_head = blockIdx.x, group = p.heads / p.kv_heads, row = p.kv_heads * D;
  const Chunk c = p.chunks[blockIdx.y];
  const int* table = p.table + static_cast<size_t>(c.seq) * p.max_blocks;
  const KV* kb = static_cast<const KV*>(p.k) + kv_head * D;
  const KV* vb = static_cast<const KV*>(p.v) + kv_head * D;
  const int first = c.start + warp * T::kTokens;

  // Lane i holds the block of the warp's i-th subtile (of the current 32); refilled when used up.
  int held = 0, blocks = 0;
  auto refill = [&](int from) {
    held = from;
    int n = from + lane, t = first + (n / T::kSub) * T::kStep + (n % T::kSub) * 16;
    blocks = t < c.end ? table[t >> p.block_shift] : 0;
  };
  auto locate = [&](size_t(&at)[T::kSub], int step, int t0) {
    if (step * T::kSub - held >= 32) refill(step * T::kSub);
#pragma unroll
    for (int s = 0; s < T::kSub; ++s) {
      int block = __shfl_sync(~0u, blocks, step * T::kSub + s - held);
      int slot = (t0 + 16 * s) & ((1 << p.block_shift) - 1);
      at[s] = ((static_cast<size_t>(block) << p.block_shift) + slot) * row;
    }
  };

  DecodeRegs<KV, D> r;
  size_t at[T::kSub];
  refill(0);
  if (first < c.end) {
    locate(at, 0, first);
    r.load_k(kb, at, row, first, c.end);
    r.load_v(vb, at, row, first, c.end);
  }
  uint32_t q[D / 16][2];
  const bf16* qp = p.q + (static_cast<size_t>(c.seq) * p.heads + kv_head * group + g) * D;
#pragma unroll
  for (int s = 0; s < D / 16; ++s)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      constexpr int kSteps = T::kPerLoad / 4;
      int dim = (s / kSteps) * 4 * T::kPerLoad + T::kPerLoad * j + 4 * (s % kSteps) + 2 * h;
      float2 x = make_float2(0, 0);
      if (g < group) x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(qp + dim));
      q[s][h] = pack_pair<T::kFp8>(x.x, x.y);
    }

  float o[D / 16][4] = {}, peak[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (int step = 0, t0 = first; t0 < c.end; ++step, t0 += T::kStep) {
    const int next = t0 + T::kStep;
    float s[T::kSub][4];
#pragma unroll
    for (int i = 0; i < T::kSub; ++i) r.scores(s[i], i, q);
    if (next < c.end) {
      locate(at, step + 1, next);
      r.load_k(kb, at, row, next, c.end);
    }
    float top[2] = {peak[0], peak[1]};
#pragma unroll
    for (int i = 0; i < T::kSub; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[i][e] = t0 + 16 * i + g + 8 * (e >> 1) < c.end ? s[i][e] * p.scale_log2 : -INFINITY;
        top[e & 1] = fmaxf(top[e & 1], s[i][e]);
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int m = 4; m <= 16; m <<= 1) top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], m));
      float keep = exp2f(peak[h] - top[h]);
      peak[h] = top[h];
      sum[h] *= keep;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) o[i][h] *= keep, o[i][h + 2] *= keep;
    }
#pragma unroll
    for (int i = 0; i < T::kSub; ++i) {
      float e0 = exp2f(s[i][0] - peak[0]), e1 = exp2f(s[i][1] - peak[1]);
      float e2 = exp2f(s[i][2] - peak[0]), e3 = exp2f(s[i][3] - peak[1]);
      sum[0] += e0 + e2, sum[1] += e1 + e3;
      r.accumulate(o, i, transpose8x8(pack_pair<T::kFp8>(e0, e1)), transpose8x8(pack_pair<T::kFp8>(e2, e3)));
    }
    if (next < c.end) r.load_v(vb, at, row, next, c.end);
  }

#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int m = 4; m <= 16; m <<= 1) sum[h] += __shfl_xor_sync(~0u, sum[h], m);
  float* so = smem + warp * kMaxGroup * D;
  float* sm = smem + kDecodeWarps * kMaxGroup * D + warp * kMaxGroup;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (g == 0) sm[2 * j + h] = peak[h], sm[kDecodeWarps * kMaxGroup + 2 * j + h] = sum[h];
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      constexpr int kTiles = T::kPerLoadV / 2;  // 16-row tiles that one lane's V load spreads over
      int dim = (i / kTiles) * 8 * T::kPerLoadV + g * T::kPerLoadV + 2 * (i % kTiles);
      *reinterpret_cast<float2*>(so + (2 * j + h) * D + dim) = make_float2(o[i][h], o[i][h + 2]);
    }
  }
  finish_chunk<D>(p, c, blockIdx.y, kv_head, smem);
}
