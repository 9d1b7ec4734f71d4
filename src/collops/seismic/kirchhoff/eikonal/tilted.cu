// The sweep steps of sweep.cu in an anisotropic medium: times along straight rays, and the arrival at a point.
//
// compile-after: sweep.cu
// compile-with: -DCOLLOPS_TILTED -DLANES=8
//
// The method is that of anisotropy.py, and the names are those of numba_sweeps.py.

#define STEPS 16
#define CLOSE Real(1e-4)
#define SLACK Real(1e-5)

// The distance along the symmetry axis, the squared one across, stretched, and the tabulated function with its derivative.
struct Interpolated {
    Real along, across, value, slope;
};

__device__ __forceinline__ Interpolated interpolated(const Source& source, const Real* offset)
{
    Real along = 0, squares = 0;
    for (int n = 0; n < 3; ++n) along += source.axis[n] * offset[n], squares += offset[n] * offset[n];
    Real across = max(squares - along * along, Real(0)) / source.stretch;
    Real place = CELLS * (along * along / max(along * along + across, Real(1e-30)));
    int cell = min(int(place), CELLS - 1);
    const Real* values = source.table + 2 * LANES * cell;
    Real part = place - cell, first = values[0], last = values[2 * LANES];
    Real left = values[LANES] / CELLS, right = values[3 * LANES] / CELLS;
    Real square = 3 * (last - first) - 2 * left - right, cube = left + right - 2 * (last - first);
    Real value = first + part * (left + part * (square + part * cube));
    return {along, across, value, CELLS * (left + part * (2 * square + 3 * part * cube))};
}

__device__ __forceinline__ Real straight(const Source& source, int axis, Real by)
{
    Real offset[3];
    for (int n = 0; n < 3; ++n) offset[n] = source.offset[n] + (n == axis ? by : Real(0));
    Interpolated here = interpolated(source, offset);
    return source.slowness * sqrt((here.along * here.along + here.across) * here.value);
}

// Write the derivatives of the time along straight rays.
__device__ __forceinline__ void slopes(const Source& source, Real* result)
{
    Interpolated here = interpolated(source, source.offset);
    Real along = here.along, total = along * along + here.across, share = along * along / max(total, Real(1e-30));
    Real time = sqrt(total * here.value), scale = time > 0 ? source.slowness / time : Real(0);
    Real of_across = (here.value - share * here.slope) / source.stretch, of_along = here.value + (1 - share) * here.slope;
    for (int n = 0; n < 3; ++n) {
        Real part = along * source.axis[n];
        result[n] = scale * (of_across * (source.offset[n] - part) + of_along * part);
    }
}

// The ellipsoid that touches the slowness surface of a medium in a direction: its coefficients across and along the axis, and the
// squared component along it.
struct Ellipsoid {
    Real across, along, share;
};

__device__ __forceinline__ Ellipsoid ellipsoid(const Real* medium, const Real* towards)
{
    Real stretch = medium[0], kappa = medium[1], along = 0, squares = 0;
    for (int n = 0; n < 3; ++n) along += medium[2 + n] * towards[n], squares += towards[n] * towards[n];
    Real across = max(squares - along * along, Real(0)) * stretch;
    along *= along;
    Real total = across + along;
    if (total <= 0) return {stretch * (1 - kappa), 1, 1};
    Real scale = 2 / (total + sqrt(max(total * total - 4 * kappa * across * along, Real(0))));
    across *= scale, along *= scale;
    Real rest = 1 - kappa * across * along;
    return {stretch * (1 - kappa * along) / rest, (1 - kappa * across) / rest, along};
}

// Change the side that the ray contradicts most, and return whether there is one; else write the slowness vector.
__device__ __forceinline__ bool turn(
    const Upwind (&sides)[2][3], Real rest, const Real* axis, Ellipsoid touching, Real shadow, Real inside, int* side, Real* towards)
{
    Real mixed = 0, worst = -SLACK;
    int which = -1, other = 0;
    for (int n = 0; n < 3; ++n) {
        Upwind here = sides[side[n] < 0][n];
        towards[n] = side[n] ? side[n] * here.inverse * (rest - here.value) : Real(0);
        mixed += axis[n] * towards[n];
    }
    for (int n = 0; n < 3; ++n) {
        Real ray = side[n] * (touching.across * towards[n] + shadow * axis[n] * mixed);
        if (side[n] && ray < worst) worst = ray, which = n;
    }
    if (which < 0) {
        Real of_ray = (touching.across + shadow * inside) * mixed * (1 / touching.along - 1 / touching.across);
        for (int n = 0; n < 3; ++n) {
            if (side[n]) continue;
            towards[n] = axis[n] * of_ray;
            for (int after = 0; after < 2; ++after) {
                if (sides[after][n].value >= FAR) continue;
                int sign = 1 - 2 * after;
                Real slack = sign * towards[n] - sides[after][n].inverse * (rest - sides[after][n].value);
                if (slack < worst) worst = slack, which = n, other = sign;
            }
        }
    }
    for (int n = 0; n < 3; ++n)
        if (n == which) side[n] = other;
    return which >= 0;
}

// The rest whose slowness vector fulfils the dispersion relation, or FAR. Inverses and `towards` are in units of the slowness along
// the symmetry axis; `medium` is a row of parameters.
__device__ __forceinline__ Real arrival(const Upwind (&sides)[2][3], Real* towards, const Real* medium)
{
    const Real* axis = medium + 2;
    Real first = FAR, found = FAR;
    int side[3];
    for (int n = 0; n < 3; ++n) {
        Real before = sides[0][n].value, after = sides[1][n].value;
        side[n] = min(before, after) >= FAR ? 0 : before <= after ? 1 : -1;
        first = min(first, min(before, after));
    }
    if (first >= FAR) return FAR;
    Ellipsoid touching = ellipsoid(medium, towards);
    for (int step = 0; step < STEPS; ++step) {
        Real inside = 0, squares = 0, linear = 0, constant = 0, mixed = 0, mixed_times = 0, latest = -FAR;
        for (int n = 0; n < 3; ++n) {
            if (!side[n]) continue;
            Upwind here = sides[side[n] < 0][n];
            Real time = here.value - first, weight = side[n] * here.inverse;
            inside += axis[n] * axis[n], squares += weight * weight;
            linear += weight * weight * time, constant += weight * weight * time * time;
            mixed += axis[n] * weight, mixed_times += axis[n] * weight * time;
            latest = max(latest, time);
        }
        // The ellipsoid of the axes that count: its shadow along the others.
        Real bent = 1 / touching.along - 1 / touching.across;
        Real shadow = -touching.across * bent / (1 / touching.across + bent * inside);
        squares = touching.across * squares + shadow * mixed * mixed;
        linear = touching.across * linear + shadow * mixed * mixed_times;
        Real root = linear * linear - squares * (touching.across * constant + shadow * mixed_times * mixed_times - 1);
        if (root < 0) {
            bool dropped = false;
            for (int n = 0; n < 3; ++n)
                if (!dropped && side[n] && sides[side[n] < 0][n].value - first == latest) side[n] = 0, dropped = true;
            continue;
        }
        Real rest = first + (linear + sqrt(root)) / squares;
        if (turn(sides, rest, axis, touching, shadow, inside, side, towards)) continue;
        found = rest;
        Real share = touching.share;
        touching = ellipsoid(medium, towards);
        if (medium[1] == 0 || fabs(touching.share - share) < CLOSE) break;
    }
    return found;
}
