// The recurrence of LSQR, in the same steps as lsqr.py, which explains it. One thread; double precision.

struct Scalars {
    double r1norm, rnorm, arnorm, anorm, acond, xnorm;
    double alfa, beta, rhobar, phibar, ddnorm, res2, xxnorm, z, cs2, sn2;
};

template <typename T>
struct Factors {
    T per_alfa, u_carry, per_beta, v_carry, x_step, w_carry, per_rho_square;
};

__device__ double divided(double a, double b) { return b != 0.0 ? a / b : 0.0; }

template <typename T>
__device__ void begin(Scalars* s, Factors<T>* f, double u_square, double v_square)
{
    const double beta = sqrt(u_square);
    const double alfa = divided(sqrt(v_square), beta);
    *s = Scalars{};
    *f = Factors<T>{};
    s->r1norm = s->rnorm = s->beta = s->phibar = beta;
    s->alfa = s->rhobar = alfa;
    s->arnorm = alfa * beta;
    s->cs2 = -1.0;
    f->per_beta = divided(1.0, beta);
    f->per_alfa = divided(1.0, alfa);
    f->u_carry = -divided(alfa, beta);
}

template <typename T>
__device__ void after_u(Scalars* s, Factors<T>* f, double u_square)
{
    s->beta = sqrt(u_square);
    f->per_beta = divided(1.0, s->beta);
    f->v_carry = -divided(s->beta, s->alfa);
}

template <typename T>
__device__ void after_v(Scalars* s, Factors<T>* f, double v_square, double w_square, double damp)
{
    const double beta = s->beta, alfa = sqrt(v_square);
    s->anorm = hypot(hypot(s->anorm, s->alfa), hypot(beta, damp));

    const double rhobar1 = hypot(s->rhobar, damp);
    const double cs1 = divided(s->rhobar, rhobar1), sn1 = divided(damp, rhobar1);
    const double psi = sn1 * s->phibar;
    const double damped_phibar = cs1 * s->phibar;
    const double rho = hypot(rhobar1, beta);
    const double cs = divided(rhobar1, rho), sn = divided(beta, rho);
    const double theta = sn * alfa;
    const double phi = cs * damped_phibar;
    s->rhobar = -cs * alfa;
    s->phibar = sn * damped_phibar;

    const double gambar = -s->cs2 * rho;
    const double rhs = phi - s->sn2 * rho * s->z;
    const double zbar = divided(rhs, gambar);
    s->xnorm = sqrt(s->xxnorm + zbar * zbar);
    const double gamma = hypot(gambar, theta);
    s->cs2 = divided(gambar, gamma);
    s->sn2 = divided(theta, gamma);
    s->z = divided(rhs, gamma);
    s->xxnorm += s->z * s->z;

    const double per_rho_square = divided(1.0, rho * rho);
    s->ddnorm += w_square * per_rho_square;
    s->res2 += psi * psi;
    s->rnorm = sqrt(s->phibar * s->phibar + s->res2);
    s->r1norm = sqrt(fabs(s->rnorm * s->rnorm - damp * damp * s->xnorm * s->xnorm));
    s->arnorm = alfa * fabs(sn * phi);
    s->acond = s->anorm * sqrt(s->ddnorm);

    s->alfa = alfa;
    f->per_alfa = divided(1.0, alfa);
    f->u_carry = -divided(alfa, beta);
    f->x_step = divided(phi, rho);
    f->w_carry = -divided(theta, rho);
    f->per_rho_square = per_rho_square;
}

#define KERNELS(T)                                                                                                 \
    extern "C" __global__ void begin_##T(Scalars* s, Factors<T>* f, const T* u_square, const T* v_square)         \
    {                                                                                                              \
        begin(s, f, *u_square, *v_square);                                                                         \
    }                                                                                                              \
    extern "C" __global__ void after_u_##T(Scalars* s, Factors<T>* f, const T* u_square)                          \
    {                                                                                                              \
        after_u(s, f, *u_square);                                                                                  \
    }                                                                                                              \
    extern "C" __global__ void after_v_##T(Scalars* s, Factors<T>* f, const T* v_square, const T* w_square,       \
                                           double damp)                                                            \
    {                                                                                                              \
        after_v(s, f, *v_square, *w_square, damp);                                                                 \
    }

KERNELS(float)
KERNELS(double)
